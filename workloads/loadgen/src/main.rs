//! `parties-loadgen`: open-loop load with interval tail latencies.

mod cli;
mod control;
mod engine;
mod failure;
mod feed;
mod histogram;
mod protocol;
mod report;
mod rng;
mod schedule;
mod search;
mod session;
mod setup;
mod sys;
mod units;
mod verdict;
mod zipf;

use clap::{CommandFactory, Parser};
use cli::{Cli, Command, ControlArgs};
use failure::Failure;
use serde::Serialize;
use session::End;
use std::process::ExitCode;

const INVALID: u8 = 3;

fn configuration<T: Serialize>(args: &T) -> Result<serde_json::Value, Failure> {
    Ok(serde_json::to_value(args).map_err(std::io::Error::from)?)
}

fn control(args: &ControlArgs) -> Result<End, Failure> {
    let command = args.command.join(" ");
    control::Command::parse(&command).map_err(Failure::Usage)?;
    let answer = control::ask(&args.socket, &command).map_err(|e| {
        Failure::Unreachable(format!(
            "no generator answers at {}: {e}; give the path of its --control",
            args.socket.display()
        ))
    })?;
    let value: serde_json::Value = serde_json::from_str(&answer)
        .map_err(|_| Failure::Unreachable(format!("{} is no generator's socket", args.socket.display())))?;
    if args.json {
        println!("{answer}");
    } else if let Some(fields) = value.as_object() {
        for (name, field) in fields.iter().filter(|(name, _)| *name != "version" && *name != "error") {
            println!("{name:<16} {field}");
        }
    }
    match value["error"].as_str() {
        Some(error) => Err(Failure::Usage(error.to_string())),
        None => Ok(End::Sound),
    }
}

fn run(command: Command) -> Result<End, Failure> {
    match command {
        Command::Memcached(args) => {
            session::run(&args.load, "memcached", &configuration(&args)?, setup::memcached(&args)?)
        }
        Command::Http(args) => session::run(&args.load, "http", &configuration(&args)?, setup::http(&args)?),
        Command::Control(args) => control(&args),
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "parties-loadgen", &mut std::io::stdout());
            Ok(End::Sound)
        }
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(End::Sound) => ExitCode::SUCCESS,
        Ok(End::Invalid) => ExitCode::from(INVALID),
        Err(failure) => {
            eprintln!("parties-loadgen: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
