//! The event loop: one thread, one epoll set, sleeping until the next thing is due. It knows nothing of how results are
//! shown; an [`Observer`] gets each window as it closes.

mod connection;
mod io;
mod pool;
mod tally;
#[cfg(test)]
mod tests;
mod wait;

pub use connection::Address;
pub use tally::{Counts, Latencies, Totals};
pub use wait::{Poller, Wait};

use crate::control::{Command, Control};
use crate::protocol::Workload;
use crate::schedule::Arrivals;
use crate::sys;
use connection::Connection;
use pool::Pool;
use std::collections::VecDeque;
use std::io::Result;
use std::os::fd::{AsRawFd, OwnedFd};
use tally::{Cause, Tally};

/// Tokens with this bit are not connections.
const SPECIAL: u64 = 1 << 63;
const SIGNALS: u64 = SPECIAL;
/// Tokens of the control socket and its clients begin here.
pub const CONTROL: u64 = SPECIAL | 1 << 32;
const BUFFER_BYTES: usize = 256 * 1024;
/// A run that was told to stop waits no longer than this for answers.
const STOP_DRAIN_NS: u64 = 1_000_000_000;

#[derive(Clone, Debug)]
pub struct Settings {
    pub address: Address,
    pub connections: usize,
    /// Requests in flight on one connection.
    pub depth: usize,
    /// Requests in flight and queued, over all connections.
    pub max_outstanding: usize,
    /// 0 is for ever.
    pub timeout_ns: u64,
    pub connect_timeout_ns: u64,
    pub interval_ns: u64,
    pub wait: Wait,
}

/// What a closed window has to tell.
pub struct Window<'a> {
    pub start_ns: u64,
    pub end_ns: u64,
    pub rate_per_s: u64,
    pub counts: Counts,
    pub outstanding: u64,
    pub oldest_outstanding_ns: u64,
    pub latencies: &'a Latencies,
}

pub trait Observer {
    fn window(&mut self, window: &Window) -> Result<()>;
}

/// Where requests come from.
pub enum Load {
    /// Open loop: due at given times, whatever the service does.
    Open(Arrivals),
    /// Closed loop: every answer is followed by a request, so many in all.
    Closed { left: u64 },
}

pub struct Phase {
    pub load: Load,
    /// `u64::MAX` is until stopped.
    pub length_ns: u64,
    /// Requests due before this are not in the totals.
    pub warmup_ns: u64,
    /// How long to wait for answers after the last request was due.
    pub drain_ns: u64,
}

/// What a phase came to.
pub struct Outcome {
    pub totals: Totals,
    /// Time over which the totals' requests were due.
    pub measured_ns: u64,
    pub user_ns: u64,
    pub system_ns: u64,
    /// A signal or the control socket ended it.
    pub stopped: bool,
    pub last_failure: String,
}

/// A request that is due and waits for a connection.
#[derive(Clone, Copy)]
struct Due {
    intended_ns: u64,
    index: u64,
}

pub struct Engine<O> {
    settings: Settings,
    poller: Poller,
    signals: OwnedFd,
    control: Option<Control>,
    pub observer: O,
    /// The control socket must not change the rate.
    pub rate_is_fixed: bool,
    workload: Box<dyn Workload>,
    connections: Vec<Connection>,
    pool: Pool,
    queue: VecDeque<Due>,
    in_flight: usize,
    next_index: u64,
    buffer: Vec<u8>,
    tally: Tally,
    load: Option<Load>,
    start_ns: u64,
    end_ns: u64,
    /// When the next request of an open loop is due; `u64::MAX` if none is.
    next_due_ns: u64,
    window_start_ns: u64,
    window_end_ns: u64,
    maintenance_ns: u64,
    /// How often the run was told to stop.
    stops: u32,
    last_failure: String,
}

impl<O: Observer> Engine<O> {
    pub fn new(
        settings: Settings,
        workload: Box<dyn Workload>,
        control: Option<Control>,
        observer: O,
    ) -> Result<Self> {
        let poller = Poller::new(settings.wait)?;
        let signals = sys::termination_signals()?;
        poller.add(signals.as_raw_fd(), SIGNALS, false)?;
        if let Some(control) = &control {
            control.register(&poller)?;
        }
        let connections =
            (0..settings.connections).map(|_| Connection::new(settings.depth, workload.parser())).collect();
        Ok(Self {
            pool: Pool::new(settings.connections, settings.depth),
            queue: VecDeque::with_capacity(settings.max_outstanding),
            settings,
            poller,
            signals,
            control,
            observer,
            rate_is_fixed: false,
            workload,
            connections,
            in_flight: 0,
            next_index: 0,
            buffer: vec![0; BUFFER_BYTES],
            tally: Tally::new(),
            load: None,
            start_ns: 0,
            end_ns: u64::MAX,
            next_due_ns: u64::MAX,
            window_start_ns: u64::MAX,
            window_end_ns: u64::MAX,
            maintenance_ns: 0,
            stops: 0,
            last_failure: String::new(),
        })
    }

    /// The way of waiting in use.
    pub fn wait_mode(&self) -> Wait {
        self.poller.wait_mode()
    }

    /// Replaces the workload between phases and returns the one before; request numbers begin at 0 again.
    pub fn set_workload(&mut self, workload: Box<dyn Workload>) -> Box<dyn Workload> {
        self.next_index = 0;
        std::mem::replace(&mut self.workload, workload)
    }

    pub fn stopped(&self) -> bool {
        self.stops > 0
    }

    fn outstanding(&self) -> usize {
        self.in_flight + self.queue.len()
    }

    /// Begins to report windows, at the next multiple of the interval. Returns the start of the first.
    pub fn begin_windows(&mut self) -> u64 {
        let interval = self.settings.interval_ns;
        self.window_start_ns = (sys::now_ns() / interval + 1) * interval;
        self.window_end_ns = self.window_start_ns + interval;
        self.tally.clear_window();
        self.window_start_ns
    }

    /// When the next phase begins: on a multiple of the interval, so that its windows are whole.
    fn next_start(&self) -> u64 {
        let interval = self.settings.interval_ns;
        let next = (sys::now_ns() / interval + 1) * interval;
        if self.window_start_ns == u64::MAX {
            sys::now_ns()
        } else {
            next.max(self.window_start_ns)
        }
    }

    /// Runs a phase to its end and waits for the answers.
    pub fn run(&mut self, phase: Phase) -> Result<Outcome> {
        let start = self.next_start();
        while sys::now_ns() < start && self.stops == 0 {
            self.turn(start)?;
        }
        let measure_from = start.saturating_add(phase.warmup_ns);
        self.tally.begin_totals(measure_from);
        self.last_failure.clear();
        self.start_ns = start;
        self.end_ns = start.saturating_add(phase.length_ns);
        self.load = Some(phase.load);
        self.schedule_next();
        let cpu_before = sys::cpu_times_ns();
        self.start_closed()?;
        while sys::now_ns() < self.end_ns && self.stops == 0 && !self.closed_is_over() {
            self.turn(self.end_ns)?;
        }
        let stopped = self.stops > 0;
        self.end_load()?;
        self.drain(if stopped { phase.drain_ns.min(STOP_DRAIN_NS) } else { phase.drain_ns })?;
        let cpu_after = sys::cpu_times_ns();
        Ok(Outcome {
            measured_ns: self.end_ns.saturating_sub(measure_from),
            totals: self.tally.begin_totals(0),
            user_ns: cpu_after.0 - cpu_before.0,
            system_ns: cpu_after.1 - cpu_before.1,
            stopped,
            last_failure: self.last_failure.clone(),
        })
    }

    /// Closes the window that has begun, if anything happened in it, so that nothing measured is lost.
    pub fn finish_windows(&mut self) -> Result<()> {
        let now = sys::now_ns();
        if self.tally.window != Counts::default() && now > self.window_start_ns {
            self.window_end_ns = now;
            self.close_window()?;
        }
        self.window_end_ns = u64::MAX;
        Ok(())
    }

    /// No request is due after this; the last ones of the schedule are handled first.
    fn end_load(&mut self) -> Result<()> {
        let now = sys::now_ns();
        self.advance(now)?;
        self.end_ns = self.end_ns.min(now);
        if let Some(Load::Closed { left }) = &mut self.load {
            *left = 0;
        }
        self.next_due_ns = u64::MAX;
        Ok(())
    }

    fn drain(&mut self, limit_ns: u64) -> Result<()> {
        let deadline = sys::now_ns().saturating_add(limit_ns);
        while self.outstanding() > 0 && self.stops < 2 && sys::now_ns() < deadline {
            self.turn(deadline)?;
        }
        if self.outstanding() > 0 {
            self.abandon();
        }
        Ok(())
    }

    /// Gives up what is outstanding: what was sent has failed, what was not will never be.
    fn abandon(&mut self) {
        while let Some(due) = self.queue.pop_front() {
            self.tally.unsent(due.intended_ns);
        }
        let now = sys::now_ns();
        for c in 0..self.connections.len() {
            if !self.connections[c].in_flight.is_empty() {
                self.lose(c, now, Cause::Abandoned, "no answer before the run ended");
            }
        }
    }

    /// Waits once, at most until `until_ns`, and handles what happened and what is due.
    fn turn(&mut self, until_ns: u64) -> Result<()> {
        let until = until_ns.min(self.next_due_ns).min(self.window_end_ns).min(self.maintenance_ns);
        let events = self.poller.poll(until)?;
        for i in 0..events {
            let Some(event) = self.poller.event(i) else {
                continue;
            };
            if event.token & SPECIAL == 0 {
                self.connection_event(event)?;
            } else if event.token == SIGNALS {
                self.take_signal();
            } else {
                self.control_event(event.token)?;
            }
            self.advance(sys::now_ns())?;
        }
        self.advance(sys::now_ns())
    }

    /// Handles everything that was due by `now_ns`, in the order of time.
    fn advance(&mut self, now_ns: u64) -> Result<()> {
        while self.next_due_ns <= now_ns {
            let intended = self.next_due_ns;
            while intended >= self.window_end_ns {
                self.close_window()?;
            }
            if let Some(Load::Open(arrivals)) = &mut self.load {
                arrivals.advance();
            }
            self.schedule_next();
            self.arrive(intended);
        }
        while now_ns >= self.window_end_ns {
            self.close_window()?;
        }
        if now_ns >= self.maintenance_ns {
            self.maintain(now_ns);
        }
        Ok(())
    }

    fn schedule_next(&mut self) {
        self.next_due_ns = match &self.load {
            Some(Load::Open(arrivals)) => {
                let due = arrivals.next_ns().saturating_add(self.start_ns);
                if due < self.end_ns {
                    due
                } else {
                    u64::MAX
                }
            }
            _ => u64::MAX,
        };
    }

    /// A request of the open loop is due.
    fn arrive(&mut self, intended_ns: u64) {
        self.tally.scheduled(intended_ns);
        let due = Due { intended_ns, index: self.next_index };
        self.next_index += 1;
        if self.outstanding() >= self.settings.max_outstanding {
            self.tally.unsent(intended_ns);
        } else if let Some(c) = self.pool.least_loaded() {
            let sent = sys::now_ns();
            self.tally.lag(intended_ns, sent);
            self.assign(c, due, sent);
            self.flush(c, sent);
        } else {
            self.tally.lag(intended_ns, sys::now_ns());
            self.queue.push_back(due);
        }
    }

    fn close_window(&mut self) -> Result<()> {
        let end = self.window_end_ns;
        let oldest = self
            .connections
            .iter()
            .filter_map(|c| c.in_flight.front().map(|r| r.intended_ns))
            .chain(self.queue.front().map(|due| due.intended_ns))
            .min();
        let window = Window {
            start_ns: self.window_start_ns,
            end_ns: end,
            rate_per_s: self.rate_in(self.window_start_ns, end),
            counts: self.tally.window,
            outstanding: self.outstanding() as u64,
            oldest_outstanding_ns: oldest.map_or(0, |intended| end.saturating_sub(intended)),
            latencies: &self.tally.window_latencies,
        };
        self.observer.window(&window)?;
        self.tally.clear_window();
        self.window_start_ns = end;
        self.window_end_ns = end + self.settings.interval_ns;
        Ok(())
    }

    /// Mean rate asked for over a stretch of time; 0 outside the phase and in a closed loop.
    fn rate_in(&self, from_ns: u64, to_ns: u64) -> u64 {
        let Some(Load::Open(arrivals)) = &self.load else {
            return 0;
        };
        let from = from_ns.max(self.start_ns);
        let to = to_ns.min(self.end_ns);
        if to <= from {
            return 0;
        }
        let rate = arrivals.mean_rate_per_s(from - self.start_ns, to - self.start_ns);
        (u128::from(rate) * u128::from(to - from) / u128::from(to_ns - from_ns)) as u64
    }

    fn start_closed(&mut self) -> Result<()> {
        if matches!(self.load, Some(Load::Closed { .. })) {
            for c in 0..self.connections.len() {
                self.feed(c, sys::now_ns());
            }
        }
        self.advance(sys::now_ns())
    }

    fn closed_is_over(&self) -> bool {
        matches!(self.load, Some(Load::Closed { left: 0 })) && self.outstanding() == 0
    }

    fn take_signal(&mut self) {
        let mut info = [0u8; 1024];
        if sys::read(&self.signals, &mut info).is_ok_and(|n| n > 0) {
            self.stops += 1;
        }
    }

    fn control_event(&mut self, token: u64) -> Result<()> {
        let Some(mut control) = self.control.take() else {
            return Ok(());
        };
        for (client, command) in control.take_commands(token, &self.poller)? {
            let answer = self.obey(command);
            control.answer(client, &answer);
        }
        self.control = Some(control);
        Ok(())
    }

    fn obey(&mut self, command: std::result::Result<Command, String>) -> serde_json::Value {
        use serde_json::json;
        let now = sys::now_ns();
        match (command, &mut self.load) {
            (Ok(Command::Rate(_)), _) if self.rate_is_fixed => {
                json!({"version": 1, "error": "a scan or search sets its own rates"})
            }
            (Ok(Command::Rate(rate)), Some(Load::Open(arrivals))) => {
                arrivals.set_rate(now.saturating_sub(self.start_ns), rate);
                self.schedule_next();
                json!({"version": 1, "rate_per_s": rate})
            }
            (Ok(Command::Rate(_)), _) => {
                json!({"version": 1, "error": "a closed loop has no rate to change"})
            }
            (Ok(Command::Stop), _) => {
                self.stops += 1;
                json!({"version": 1, "stopping": true})
            }
            (Ok(Command::Status), _) => self.status(now),
            (Err(error), _) => json!({"version": 1, "error": error}),
        }
    }

    fn status(&self, now_ns: u64) -> serde_json::Value {
        let counts = self.tally.totals.counts;
        let response = &self.tally.totals.latencies.response;
        serde_json::json!({
            "version": 1,
            "elapsed_ns": now_ns.saturating_sub(self.start_ns),
            "rate_per_s": self.rate_in(now_ns, now_ns + 1_000),
            "scheduled": counts.scheduled,
            "sent": counts.sent,
            "completed": counts.completed,
            "failed": counts.failed,
            "unsent": counts.unsent,
            "outstanding": self.outstanding(),
            "response_p50_ns": response.percentile_ns(500_000),
            "response_p99_ns": response.percentile_ns(990_000),
            "lag_p99_ns": self.tally.totals.latencies.lag.percentile_ns(990_000),
        })
    }
}
