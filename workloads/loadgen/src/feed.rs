//! Windows for the daemon's histogram socket (docs/histogram-socket.md). It never blocks: what the socket does not take
//! at once is dropped, which the daemon sees as a gap in the sequence.

use crate::engine::Window;
use crate::sys;
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::{ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

const RETRY_NS: u64 = 1_000_000_000;
const LARGEST_MESSAGE_BYTES: usize = 65_536;
/// More different complaints than this are not repeated to the reader.
const MOST_COMPLAINTS: usize = 100;

#[derive(Serialize)]
struct Message<'a> {
    version: u32,
    service: &'a str,
    client: &'a str,
    sequence: u64,
    window_start_ns: u64,
    window_end_ns: u64,
    scheduled: u64,
    sent: u64,
    completed: u64,
    failed: u64,
    unsent: u64,
    outstanding: u64,
    oldest_outstanding_ns: u64,
    histogram: Vec<u64>,
}

pub struct Feed {
    path: PathBuf,
    service: String,
    client: String,
    sequence: u64,
    socket: Option<OwnedFd>,
    retry_ns: u64,
    message: Vec<u8>,
    said: BTreeSet<String>,
}

impl Feed {
    /// The sequence begins at the present time in ms, so that a generator started again under the same name is not
    /// taken for a repetition of its forerunner.
    pub fn new(path: PathBuf, service: String, client: String) -> Self {
        let sequence = sys::now_ns() / 1_000_000;
        let message = Vec::with_capacity(LARGEST_MESSAGE_BYTES);
        Self { path, service, client, sequence, socket: None, retry_ns: 0, message, said: BTreeSet::new() }
    }

    /// Says a thing on stderr, once.
    fn say(&mut self, text: String) {
        if self.said.len() < MOST_COMPLAINTS && !self.said.contains(&text) {
            eprintln!("parties-loadgen: {text}");
            self.said.insert(text);
        }
    }

    fn gone(&mut self, now_ns: u64) {
        self.socket = None;
        self.retry_ns = now_ns + RETRY_NS;
        self.say(format!(
            "nobody takes windows at {}; the load goes on, and it is tried again every second",
            self.path.display()
        ));
    }

    fn connect(&mut self, now_ns: u64) {
        if self.socket.is_none() && now_ns >= self.retry_ns {
            match sys::connect_unix(&self.path, libc::SOCK_SEQPACKET) {
                Ok(socket) => self.socket = Some(socket),
                Err(_) => self.gone(now_ns),
            }
        }
    }

    /// Reads what the daemon answered: complaints, each said once.
    fn read_answers(&mut self, now_ns: u64) {
        let mut answer = [0u8; 4096];
        while let Some(socket) = &self.socket {
            match sys::receive(socket, &mut answer) {
                Ok(0) => self.gone(now_ns),
                Ok(n) => {
                    let text = String::from_utf8_lossy(&answer[..n]).into_owned();
                    let error = serde_json::from_str::<serde_json::Value>(&text)
                        .ok()
                        .and_then(|value| value["error"].as_str().map(ToString::to_string));
                    self.say(format!("the daemon refused a window: {}", error.unwrap_or(text)));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.gone(now_ns),
            }
        }
    }

    fn encode(&mut self, window: &Window) -> Result<()> {
        self.message.clear();
        let message = Message {
            version: 1,
            service: &self.service,
            client: &self.client,
            sequence: self.sequence,
            window_start_ns: window.start_ns,
            window_end_ns: window.end_ns,
            scheduled: window.counts.scheduled,
            sent: window.counts.sent,
            completed: window.counts.completed,
            failed: window.counts.failed,
            unsent: window.counts.unsent,
            outstanding: window.outstanding,
            oldest_outstanding_ns: window.oldest_outstanding_ns,
            histogram: window.latencies.response.sparse(),
        };
        Ok(serde_json::to_writer(&mut self.message, &message)?)
    }

    pub fn window(&mut self, window: &Window) -> Result<()> {
        let now = sys::now_ns();
        self.read_answers(now);
        self.connect(now);
        self.sequence += 1;
        if self.socket.is_none() {
            return Ok(());
        }
        self.encode(window)?;
        if self.message.len() > LARGEST_MESSAGE_BYTES {
            self.say(format!(
                "a window of {} bytes is too large to send and was left out",
                self.message.len()
            ));
            return Ok(());
        }
        let sent = self.socket.as_ref().map(|socket| sys::send(socket, &self.message));
        match sent {
            Some(Err(error)) if error.kind() == ErrorKind::WouldBlock => {
                self.say("the daemon does not keep up with its socket; windows are lost".to_string());
            }
            Some(Err(_)) => self.gone(now),
            _ => {}
        }
        Ok(())
    }

    /// The last answers, before the program ends.
    pub fn finish(&mut self) {
        self.read_answers(sys::now_ns());
    }
}
