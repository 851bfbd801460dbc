//! The engine's dealings with its connections.

use super::connection::{InFlight, State};
use super::tally::Cause;
use super::wait::Event;
use super::{Due, Engine, Load, Observer};
use crate::sys;
use std::io::{ErrorKind, Result};
use std::os::fd::AsRawFd;

/// Generations are cut to this, so that a token never has the special bit.
const GENERATIONS: u32 = 0x7fff_ffff;

impl<O: Observer> Engine<O> {
    fn token(&self, c: usize) -> u64 {
        u64::from(self.connections[c].generation & GENERATIONS) << 32 | c as u64
    }

    /// Connects, waiting until every connection is there or the time is over. The last error if none came about.
    pub fn connect(&mut self) -> Result<std::result::Result<usize, String>> {
        let deadline = sys::now_ns() + self.settings.connect_timeout_ns;
        self.maintain(sys::now_ns());
        loop {
            let ready = self.connections.iter().filter(|c| c.state == State::Ready).count();
            if ready == self.connections.len() || (sys::now_ns() >= deadline && ready > 0) {
                return Ok(Ok(ready));
            }
            if sys::now_ns() >= deadline || self.stopped() {
                return Ok(Err(std::mem::take(&mut self.last_failure)));
            }
            self.turn(deadline)?;
        }
    }

    /// Gives a request to a connection that has room; `flush` must follow.
    pub(super) fn assign(&mut self, c: usize, due: Due, sent_ns: u64) {
        let connection = &mut self.connections[c];
        let expect = self.workload.write_request(due.index, connection.out());
        connection.in_flight.push_back(InFlight { intended_ns: due.intended_ns, sent_ns, expect });
        self.in_flight += 1;
        self.pool.place(c, connection.in_flight.len());
        self.tally.sent(due.intended_ns);
    }

    /// Writes out what a connection holds; if the kernel takes no more, asks to be told when it does.
    pub(super) fn flush(&mut self, c: usize, now_ns: u64) {
        let connection = &mut self.connections[c];
        let Some(fd) = connection.fd.as_ref().map(AsRawFd::as_raw_fd) else {
            return;
        };
        match connection.flush() {
            Ok(done) if done == connection.waits_to_write => {
                connection.waits_to_write = !done;
                let token = self.token(c);
                if let Err(error) = self.poller.change(fd, token, !done) {
                    self.lose(c, now_ns, Cause::Connection, &error.to_string());
                }
            }
            Ok(_) => {}
            Err(error) => self.lose(c, now_ns, Cause::Connection, &error.to_string()),
        }
    }

    /// Fills a connection that is ready from the queue, or in a closed loop with new requests.
    pub(super) fn feed(&mut self, c: usize, now_ns: u64) {
        if self.connections[c].state != State::Ready {
            return;
        }
        self.pool.place(c, self.connections[c].in_flight.len());
        let mut fed = false;
        while self.connections[c].in_flight.len() < self.settings.depth {
            let Some(due) = self.queue.pop_front().or_else(|| self.next_closed(now_ns)) else {
                break;
            };
            self.assign(c, due, now_ns);
            fed = true;
        }
        if fed {
            self.flush(c, now_ns);
        }
    }

    fn next_closed(&mut self, now_ns: u64) -> Option<Due> {
        let Some(Load::Closed { left }) = &mut self.load else {
            return None;
        };
        *left = left.checked_sub(1)?;
        let due = Due { intended_ns: now_ns, index: self.next_index };
        self.next_index += 1;
        self.tally.scheduled(now_ns);
        Some(due)
    }

    pub(super) fn connection_event(&mut self, event: Event) -> Result<()> {
        let c = (event.token & 0xffff_ffff) as usize;
        if event.token != self.token(c) || self.connections[c].fd.is_none() {
            return Ok(());
        }
        let now = sys::now_ns();
        if now >= self.window_end_ns {
            self.advance(now)?;
        }
        match self.connections[c].state {
            State::Connecting { .. } => self.connected(c, now),
            State::Ready => {
                if event.readable {
                    self.read(c);
                }
                if event.writable && self.connections[c].state == State::Ready {
                    self.flush(c, now);
                }
            }
            State::Down { .. } => {}
        }
        Ok(())
    }

    /// The kernel says that a connection attempt has ended.
    fn connected(&mut self, c: usize, now_ns: u64) {
        let result = self.connections[c].fd.as_ref().map_or(Ok(()), sys::connect_result);
        match result {
            Ok(()) => {
                self.connections[c].state = State::Ready;
                self.flush(c, now_ns);
                self.feed(c, now_ns);
            }
            Err(error) => self.lose(c, now_ns, Cause::Connection, &error.to_string()),
        }
    }

    fn read(&mut self, c: usize) {
        let Some(fd) = &self.connections[c].fd else {
            return;
        };
        let received = sys::receive(fd, &mut self.buffer);
        let now = sys::now_ns();
        match received {
            Ok(0) => self.end_of_stream(c, now),
            Ok(n) => {
                let buffer = std::mem::take(&mut self.buffer);
                self.take_answers(c, &buffer[..n], now);
                self.buffer = buffer;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => self.lose(c, now, Cause::Connection, &error.to_string()),
        }
    }

    fn take_answers(&mut self, c: usize, mut input: &[u8], now_ns: u64) {
        while !input.is_empty() {
            let connection = &mut self.connections[c];
            let Some(oldest) = connection.in_flight.front().copied() else {
                self.lose(c, now_ns, Cause::Connection, "the service sent bytes that nobody asked for");
                return;
            };
            match connection.parser.advance(oldest.expect, input) {
                Err(garbage) => {
                    self.lose(c, now_ns, Cause::Connection, garbage.0);
                    return;
                }
                Ok((used, answer)) => {
                    input = &input[used..];
                    if answer.is_some_and(|answer| self.take_answer(c, answer, now_ns)) {
                        return;
                    }
                }
            }
        }
        self.feed(c, now_ns);
    }

    /// Counts an answer to the oldest request of a connection; true if the connection ended with it.
    fn take_answer(&mut self, c: usize, answer: crate::protocol::Answer, now_ns: u64) -> bool {
        let connection = &mut self.connections[c];
        let Some(request) = connection.in_flight.pop_front() else {
            return false;
        };
        connection.answered();
        self.in_flight -= 1;
        if answer.good {
            self.tally.completed(request.intended_ns, request.sent_ns, now_ns, answer.misses);
        } else {
            self.last_failure.clear();
            self.last_failure.push_str(connection.parser.last_error());
            self.tally.failed(request.intended_ns, Cause::Answer);
        }
        if answer.closes {
            self.lose(c, now_ns, Cause::Connection, "the service closed the connection after an answer");
        }
        answer.closes
    }

    fn end_of_stream(&mut self, c: usize, now_ns: u64) {
        let connection = &mut self.connections[c];
        let answer = if connection.in_flight.is_empty() { None } else { connection.parser.end_of_stream() };
        let ended = answer.is_some_and(|answer| self.take_answer(c, answer, now_ns));
        if !ended {
            self.lose(c, now_ns, Cause::Connection, "the service closed the connection");
        }
    }

    /// Closes a connection. Its requests in flight have failed; it will be opened again.
    pub(super) fn lose(&mut self, c: usize, now_ns: u64, cause: Cause, why: &str) {
        self.pool.remove(c);
        let timeout = self.settings.timeout_ns;
        let connection = &mut self.connections[c];
        if !connection.in_flight.is_empty() || matches!(connection.state, State::Connecting { .. }) {
            self.last_failure.clear();
            self.last_failure.push_str(why);
        }
        if connection.state == State::Ready {
            self.tally.totals.reconnects += 1;
        }
        while let Some(request) = connection.in_flight.pop_front() {
            self.in_flight -= 1;
            // The requests behind the one that took too long are lost with the connection.
            let expired = now_ns >= request.sent_ns.saturating_add(timeout);
            let own = if cause == Cause::Timeout && !expired { Cause::Connection } else { cause };
            self.tally.failed(request.intended_ns, own);
        }
        connection.close(now_ns);
        if let State::Down { retry_ns } = connection.state {
            self.maintenance_ns = self.maintenance_ns.min(retry_ns);
        }
    }

    /// Opens what is down, gives up what takes too long, and finds out when to look again.
    pub(super) fn maintain(&mut self, now_ns: u64) {
        self.maintenance_ns = u64::MAX;
        for c in 0..self.connections.len() {
            self.maintain_connection(c, now_ns);
            let connection = &self.connections[c];
            let next = match connection.state {
                State::Down { retry_ns } => retry_ns,
                State::Connecting { since_ns } => since_ns.saturating_add(self.settings.connect_timeout_ns),
                State::Ready if self.settings.timeout_ns == 0 => u64::MAX,
                State::Ready => {
                    let since = connection.in_flight.front().map_or(now_ns, |request| request.sent_ns);
                    since.saturating_add(self.settings.timeout_ns)
                }
            };
            self.maintenance_ns = self.maintenance_ns.min(next);
        }
    }

    fn maintain_connection(&mut self, c: usize, now_ns: u64) {
        match self.connections[c].state {
            State::Down { retry_ns } if retry_ns <= now_ns => self.open(c, now_ns),
            State::Connecting { since_ns }
                if now_ns >= since_ns.saturating_add(self.settings.connect_timeout_ns) =>
            {
                self.lose(c, now_ns, Cause::Connection, "the connection attempt took too long");
            }
            State::Ready if self.settings.timeout_ns > 0 => {
                let oldest = self.connections[c].in_flight.front().map(|request| request.sent_ns);
                if oldest.is_some_and(|sent| now_ns >= sent.saturating_add(self.settings.timeout_ns)) {
                    self.lose(c, now_ns, Cause::Timeout, "no answer within the time-out");
                }
            }
            _ => {}
        }
    }

    fn open(&mut self, c: usize, now_ns: u64) {
        let opened = self.connections[c].open(&self.settings.address, now_ns).and_then(|()| {
            let connection = &self.connections[c];
            let fd = connection.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd);
            self.poller.add(fd, self.token(c), connection.waits_to_write)
        });
        match opened {
            Ok(()) => self.feed(c, now_ns),
            Err(error) => {
                self.last_failure.clear();
                self.last_failure.push_str(&error.to_string());
                self.lose(c, now_ns, Cause::Connection, "");
            }
        }
    }
}
