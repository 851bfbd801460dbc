//! The control socket: lines `rate 5000`, `status`, `stop` over a Unix stream socket; each gets one line of JSON.

use crate::engine::{Poller, CONTROL};
use crate::units;
use std::io::{BufRead, BufReader, ErrorKind, Read, Result, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MOST_CLIENTS: usize = 16;
const LONGEST_LINE_BYTES: usize = 1024;
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Rate(u64),
    Status,
    Stop,
}

impl Command {
    pub fn parse(line: &str) -> std::result::Result<Self, String> {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["rate", rate] => units::rate_per_s(rate).map(Self::Rate),
            ["status"] => Ok(Self::Status),
            ["stop"] => Ok(Self::Stop),
            _ => Err(format!("`{line}` is no command; write `rate 5000`, `status` or `stop`")),
        }
    }
}

struct Client {
    stream: UnixStream,
    input: Vec<u8>,
}

pub struct Control {
    path: PathBuf,
    listener: UnixListener,
    clients: Vec<Option<Client>>,
}

impl Control {
    /// Listens on the path. A socket left behind by a generator that is gone is replaced, one in use is not.
    pub fn listen(path: &Path) -> Result<Self> {
        if UnixStream::connect(path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused) {
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        let clients = (0..MOST_CLIENTS).map(|_| None).collect();
        Ok(Self { path: path.to_path_buf(), listener, clients })
    }

    pub fn register(&self, poller: &Poller) -> Result<()> {
        poller.add(self.listener.as_raw_fd(), CONTROL, false)
    }

    /// What the clients want, of an event with one of this socket's tokens.
    pub fn take_commands(
        &mut self,
        token: u64,
        poller: &Poller,
    ) -> Result<Vec<(usize, std::result::Result<Command, String>)>> {
        if token == CONTROL {
            self.accept(poller)?;
            return Ok(Vec::new());
        }
        let slot = (token - CONTROL - 1) as usize;
        let lines = self.read_lines(slot);
        Ok(lines.iter().map(|line| (slot, Command::parse(line))).collect())
    }

    fn accept(&mut self, poller: &Poller) -> Result<()> {
        while let Ok((stream, _)) = self.listener.accept() {
            let Some(slot) = self.clients.iter().position(Option::is_none) else {
                continue;
            };
            stream.set_nonblocking(true)?;
            poller.add(stream.as_raw_fd(), CONTROL + 1 + slot as u64, false)?;
            self.clients[slot] = Some(Client { stream, input: Vec::new() });
        }
        Ok(())
    }

    /// The whole lines that have come; a client that is gone, or writes lines without end, is dropped.
    fn read_lines(&mut self, slot: usize) -> Vec<String> {
        let Some(client) = self.clients.get_mut(slot).and_then(Option::as_mut) else {
            return Vec::new();
        };
        let mut piece = [0u8; LONGEST_LINE_BYTES];
        let alive = match client.stream.read(&mut piece) {
            Ok(n) => {
                client.input.extend_from_slice(&piece[..n]);
                n > 0
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        let mut lines = Vec::new();
        while let Some(end) = client.input.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = client.input.drain(..=end).collect();
            lines.push(String::from_utf8_lossy(&line).trim().to_string());
        }
        if !alive || client.input.len() > LONGEST_LINE_BYTES {
            self.clients[slot] = None;
        }
        lines
    }

    /// Answers a client; one that does not read its answers loses them.
    pub fn answer(&mut self, slot: usize, answer: &serde_json::Value) {
        if let Some(client) = &mut self.clients[slot] {
            let line = format!("{answer}\n");
            if client.stream.write_all(line.as_bytes()).is_err() {
                self.clients[slot] = None;
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // A file that somebody has already removed is as good as removed.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Sends one command to a running generator and returns its answer.
pub fn ask(path: &Path, command: &str) -> Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.write_all(format!("{command}\n").as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(answer.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands are read, and anything else is refused with what to write.
    #[test]
    fn commands() {
        assert_eq!(Command::parse(" rate  5k "), Ok(Command::Rate(5000)));
        assert_eq!(Command::parse("status"), Ok(Command::Status));
        assert_eq!(Command::parse("stop"), Ok(Command::Stop));
        for bad in ["", "rate", "rate x", "rate 1 2", "faster"] {
            assert!(Command::parse(bad).is_err(), "{bad}");
        }
    }
}
