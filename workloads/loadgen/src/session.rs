//! A run from its header to its summary.

use crate::cli::LoadArgs;
use crate::control::Control;
use crate::engine::{Engine, Load, Outcome, Phase};
use crate::failure::Failure;
use crate::feed::Feed;
use crate::report::{Outputs, Report, TotalsLine, VERSION};
use crate::schedule::{Arrivals, Profile};
use crate::setup::{self, Workloads};
use crate::sys;
use crate::verdict::Limits;
use serde_json::json;
use std::fs::File;
use std::io::{stdout, Write};

/// How the run ended, where it did end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Sound,
    Invalid,
}

pub struct Session<'a> {
    pub args: &'a LoadArgs,
    pub engine: Engine<Outputs>,
    pub limits: Limits,
    /// Each phase has a stream of randomness of its own.
    phases: u64,
}

fn open_report(args: &LoadArgs) -> Result<Report, Failure> {
    let lines: Box<dyn Write> = match &args.report {
        None => Box::new(stdout()),
        Some(path) => Box::new(File::create(path).map_err(|e| {
            Failure::Usage(format!("--report {}: {e}; give a file that can be written", path.display()))
        })?),
    };
    Ok(Report::new(lines, !args.json, args.interval_histograms))
}

fn open_feed(args: &LoadArgs) -> Option<Feed> {
    let path = args.histogram_socket.clone()?;
    let client = args.client.clone().unwrap_or_else(|| format!("loadgen-{}", std::process::id()));
    Some(Feed::new(path, args.service.clone()?, client))
}

fn open_control(args: &LoadArgs) -> Result<Option<Control>, Failure> {
    let listen = |path: &std::path::PathBuf| {
        Control::listen(path).map_err(|e| {
            Failure::Usage(format!(
                "--control {}: {e}; give a path in a writable folder that nobody listens on",
                path.display()
            ))
        })
    };
    args.control.as_ref().map(listen).transpose()
}

/// Runs what the command line asks for.
pub fn run(
    args: &LoadArgs,
    protocol: &'static str,
    configuration: &serde_json::Value,
    workloads: Workloads,
) -> Result<End, Failure> {
    let address = workloads.address.to_string();
    let settings = setup::settings(args, workloads.address)?;
    let (profile, length_ns) = setup::profile(args)?;
    sys::least_timer_slack();
    let outputs = Outputs { report: open_report(args)?, feed: open_feed(args) };
    let engine = Engine::new(settings, workloads.main, open_control(args)?, outputs)?;
    let limits = Limits {
        lag_percentile_ppm: args.lag_percentile,
        max_lag_ns: args.max_lag,
        max_deviation_ppm: args.max_deviation,
    };
    let mut session = Session { args, engine, limits, phases: 0 };
    session.connect(&address)?;
    if let Some((preload, count)) = workloads.preload {
        session.preload(preload, count)?;
        if workloads.preload_only || session.engine.stopped() {
            return Ok(End::Sound);
        }
    }
    session.engine.rate_is_fixed = args.scan.is_some() || args.search.is_some();
    let start = session.engine.begin_windows();
    session.header(protocol, configuration, start)?;
    let end = match (args.scan, args.search) {
        (Some(range), _) => session.scan(range),
        (_, Some(target)) => session.search(target),
        _ => session.plain(profile, length_ns),
    };
    if let Some(feed) = &mut session.engine.observer.feed {
        feed.finish();
    }
    end
}

impl Session<'_> {
    fn connect(&mut self, address: &str) -> Result<(), Failure> {
        match self.engine.connect()? {
            Err(why) => Err(Failure::Unreachable(format!(
                "cannot connect to {address}: {why}; start the service, or give its address as the target"
            ))),
            Ok(ready) => {
                if ready < self.args.connections as usize {
                    eprintln!(
                        "parties-loadgen: only {ready} of {} connections came about so far",
                        self.args.connections
                    );
                }
                Ok(())
            }
        }
    }

    fn header(
        &mut self,
        protocol: &str,
        configuration: &serde_json::Value,
        start_ns: u64,
    ) -> Result<(), Failure> {
        let monotonic = sys::now_ns();
        let header = json!({
            "version": VERSION,
            "kind": "header",
            "program": "parties-loadgen",
            "program_version": env!("CARGO_PKG_VERSION"),
            "protocol": protocol,
            "seed": self.args.seed,
            "wait": self.engine.wait_mode(),
            "start_monotonic_ns": start_ns,
            "start_unix_ns": sys::wall_ns() + (start_ns - monotonic.min(start_ns)),
            "configuration": configuration,
        });
        self.engine.observer.report.line(&header)?;
        Ok(())
    }

    /// Stores the key space. Its requests are in no report.
    fn preload(&mut self, preload: Box<dyn crate::protocol::Workload>, count: u64) -> Result<(), Failure> {
        let began = sys::now_ns();
        let main = self.engine.set_workload(preload);
        let outcome = self.engine.run(Phase {
            load: Load::Closed { left: count },
            length_ns: u64::MAX,
            warmup_ns: 0,
            drain_ns: self.args.drain_timeout,
        })?;
        self.engine.set_workload(main);
        let counts = outcome.totals.counts;
        if counts.completed < count && !outcome.stopped {
            return Err(Failure::Unreachable(format!(
                "{} of {count} keys could not be stored ({}); give the server more memory, or fewer or smaller keys",
                count - counts.completed,
                outcome.last_failure
            )));
        }
        eprintln!(
            "parties-loadgen: stored {} keys in {}",
            counts.completed,
            crate::units::show_ns(sys::now_ns() - began)
        );
        Ok(())
    }

    /// One stretch of load at a rate, and the wait for its answers.
    pub fn step(&mut self, rate_per_s: u64) -> Result<Outcome, Failure> {
        let profile = Profile::constant(rate_per_s);
        let length = self.args.step_warmup.saturating_add(self.args.step_duration);
        self.open_loop(profile, length, self.args.step_warmup)
    }

    fn open_loop(&mut self, profile: Profile, length_ns: u64, warmup_ns: u64) -> Result<Outcome, Failure> {
        let arrivals = Arrivals::new(profile, self.args.seed, self.phases);
        self.phases += 1;
        let drain_ns = self.args.drain_timeout;
        Ok(self.engine.run(Phase { load: Load::Open(arrivals), length_ns, warmup_ns, drain_ns })?)
    }

    fn plain(&mut self, profile: Profile, length_ns: u64) -> Result<End, Failure> {
        let args = self.args;
        let (mode, outcome) = if args.closed {
            let phase = Phase {
                load: Load::Closed { left: u64::MAX },
                length_ns,
                warmup_ns: args.warmup,
                drain_ns: args.drain_timeout,
            };
            ("closed", self.engine.run(phase)?)
        } else {
            ("open", self.open_loop(profile, length_ns, args.warmup)?)
        };
        self.engine.finish_windows()?;
        let line = TotalsLine::of("summary", mode, None, &outcome, self.limits);
        let report = &mut self.engine.observer.report;
        report.line(&line)?;
        report.table_head();
        report.table_row(&line, "");
        Ok(if line.valid { End::Sound } else { End::Invalid })
    }
}
