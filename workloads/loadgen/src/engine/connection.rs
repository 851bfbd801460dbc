//! One connection to the service: its socket, what it still has to write, what it waits for.

use crate::protocol::{Expect, Parser};
use crate::sys;
use serde::Serialize;
use std::collections::VecDeque;
use std::io::{ErrorKind, Result};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

const FIRST_BACKOFF_NS: u64 = 10_000_000;
const LONGEST_BACKOFF_NS: u64 = 1_000_000_000;

/// Where the service listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A request that was sent and not answered.
#[derive(Clone, Copy)]
pub struct InFlight {
    pub intended_ns: u64,
    pub sent_ns: u64,
    pub expect: Expect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Down { retry_ns: u64 },
    Connecting { since_ns: u64 },
    Ready,
}

pub struct Connection {
    pub fd: Option<OwnedFd>,
    pub state: State,
    pub in_flight: VecDeque<InFlight>,
    pub parser: Box<dyn Parser>,
    /// Tells events of this socket from those of the sockets before it.
    pub generation: u32,
    /// The kernel is asked to say when it takes more.
    pub waits_to_write: bool,
    out: Vec<u8>,
    written: usize,
    backoff_ns: u64,
}

impl Connection {
    pub fn new(depth: usize, parser: Box<dyn Parser>) -> Self {
        Self {
            fd: None,
            state: State::Down { retry_ns: 0 },
            in_flight: VecDeque::with_capacity(depth),
            parser,
            generation: 0,
            waits_to_write: false,
            out: Vec::with_capacity(4096),
            written: 0,
            backoff_ns: FIRST_BACKOFF_NS,
        }
    }

    /// Begins to connect; the socket is in `fd`, the state is Ready or Connecting.
    pub fn open(&mut self, address: &Address, now_ns: u64) -> Result<()> {
        let (fd, there) = match address {
            Address::Tcp(address) => sys::connect_tcp(address)?,
            Address::Unix(path) => (sys::connect_unix(path, libc::SOCK_STREAM)?, true),
        };
        self.state = if there { State::Ready } else { State::Connecting { since_ns: now_ns } };
        self.fd = Some(fd);
        self.generation = self.generation.wrapping_add(1);
        self.waits_to_write = !there;
        self.parser.reset();
        self.out.clear();
        self.written = 0;
        Ok(())
    }

    /// Closes the socket. A connection that had brought an answer is tried again at once, others after a growing wait.
    pub fn close(&mut self, now_ns: u64) {
        self.fd = None;
        self.state = State::Down { retry_ns: now_ns + self.backoff_ns };
        self.backoff_ns = match self.backoff_ns {
            0 => FIRST_BACKOFF_NS,
            before => (before * 2).min(LONGEST_BACKOFF_NS),
        };
    }

    /// An answer came: the service is well.
    pub fn answered(&mut self) {
        self.backoff_ns = 0;
    }

    /// The buffer to append a request to.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Writes what there is; false if the kernel takes no more for now.
    pub fn flush(&mut self) -> Result<bool> {
        let Some(fd) = &self.fd else {
            return Ok(true);
        };
        while self.written < self.out.len() {
            match sys::send(fd, &self.out[self.written..]) {
                Ok(n) => self.written += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.written = 0;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{http, Workload};
    use crate::zipf::Zipf;

    /// The wait before each attempt doubles up to a second, and an answer takes it back to none.
    #[test]
    fn backoff_grows_and_resets() {
        let workload =
            http::Requests::new(http::Paths::List(vec!["/".to_string()]), Zipf::new(1, 0.0), 0, "h", &[]);
        let mut connection = Connection::new(1, workload.parser());
        let mut waits = Vec::new();
        for _ in 0..9 {
            connection.close(5);
            let State::Down { retry_ns } = connection.state else { panic!("closed") };
            waits.push((retry_ns - 5) / 1_000_000);
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        connection.answered();
        connection.close(5);
        assert_eq!(connection.state, State::Down { retry_ns: 5 });
        connection.close(5);
        assert_eq!(connection.state, State::Down { retry_ns: 5 + FIRST_BACKOFF_NS });
    }
}
