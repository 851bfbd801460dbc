//! What happened to requests, by window and by run.

use crate::histogram::Histogram;

/// Requests counted by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub scheduled: u64,
    pub sent: u64,
    pub completed: u64,
    pub failed: u64,
    pub unsent: u64,
}

/// The three latencies of requests.
///
/// *Response* runs from the intended send time to the answer, *service* from the real send to the answer. *Lag* is how
/// late the generator itself was: from the intended time to the real send if a connection was free, or else to the moment
/// the request was put into the queue. The wait in that queue is the service's doing: it is in the response, not in the lag.
pub struct Latencies {
    pub response: Histogram,
    pub service: Histogram,
    pub lag: Histogram,
}

impl Latencies {
    fn new() -> Self {
        Self { response: Histogram::new(), service: Histogram::new(), lag: Histogram::new() }
    }

    fn clear(&mut self) {
        self.response.clear();
        self.service.clear();
        self.lag.clear();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The service answered with an error.
    Answer,
    /// The connection was lost, or what came over it was no answer.
    Connection,
    /// No answer within the time-out.
    Timeout,
    /// Still outstanding when the run gave up waiting.
    Abandoned,
}

/// Totals of the measured part of a run: of requests that were due after the warm-up.
pub struct Totals {
    pub counts: Counts,
    pub latencies: Latencies,
    pub failed_answer: u64,
    pub failed_connection: u64,
    pub failed_timeout: u64,
    pub failed_abandoned: u64,
    pub misses: u64,
    pub reconnects: u64,
}

impl Totals {
    pub fn new() -> Self {
        Self {
            counts: Counts::default(),
            latencies: Latencies::new(),
            failed_answer: 0,
            failed_connection: 0,
            failed_timeout: 0,
            failed_abandoned: 0,
            misses: 0,
            reconnects: 0,
        }
    }
}

/// Counts the present window and the run's totals.
pub struct Tally {
    pub window: Counts,
    pub window_latencies: Latencies,
    pub totals: Totals,
    /// Requests due before this time are warm-up and not in the totals.
    measure_from_ns: u64,
}

impl Tally {
    pub fn new() -> Self {
        Self {
            window: Counts::default(),
            window_latencies: Latencies::new(),
            totals: Totals::new(),
            measure_from_ns: 0,
        }
    }

    /// Begins new totals, of requests due from `measure_from_ns` on, and returns the old ones.
    pub fn begin_totals(&mut self, measure_from_ns: u64) -> Totals {
        self.measure_from_ns = measure_from_ns;
        std::mem::replace(&mut self.totals, Totals::new())
    }

    pub fn clear_window(&mut self) {
        self.window = Counts::default();
        self.window_latencies.clear();
    }

    fn measured(&self, intended_ns: u64) -> bool {
        intended_ns >= self.measure_from_ns
    }

    pub fn scheduled(&mut self, intended_ns: u64) {
        self.window.scheduled += 1;
        self.totals.counts.scheduled += u64::from(self.measured(intended_ns));
    }

    pub fn unsent(&mut self, intended_ns: u64) {
        self.window.unsent += 1;
        self.totals.counts.unsent += u64::from(self.measured(intended_ns));
    }

    pub fn sent(&mut self, intended_ns: u64) {
        self.window.sent += 1;
        self.totals.counts.sent += u64::from(self.measured(intended_ns));
    }

    /// The generator was this late for a request.
    pub fn lag(&mut self, intended_ns: u64, noticed_ns: u64) {
        let lag = noticed_ns.saturating_sub(intended_ns);
        self.window_latencies.lag.record(lag);
        if self.measured(intended_ns) {
            self.totals.latencies.lag.record(lag);
        }
    }

    pub fn completed(&mut self, intended_ns: u64, sent_ns: u64, now_ns: u64, misses: u32) {
        let response = now_ns.saturating_sub(intended_ns);
        let service = now_ns.saturating_sub(sent_ns);
        self.window.completed += 1;
        self.window_latencies.response.record(response);
        self.window_latencies.service.record(service);
        if self.measured(intended_ns) {
            self.totals.counts.completed += 1;
            self.totals.latencies.response.record(response);
            self.totals.latencies.service.record(service);
            self.totals.misses += u64::from(misses);
        }
    }

    pub fn failed(&mut self, intended_ns: u64, cause: Cause) {
        self.window.failed += 1;
        if self.measured(intended_ns) {
            self.totals.counts.failed += 1;
            *match cause {
                Cause::Answer => &mut self.totals.failed_answer,
                Cause::Connection => &mut self.totals.failed_connection,
                Cause::Timeout => &mut self.totals.failed_timeout,
                Cause::Abandoned => &mut self.totals.failed_abandoned,
            } += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests due in the warm-up are in their window and not in the totals.
    #[test]
    fn warm_up_is_left_out_of_totals() {
        let mut tally = Tally::new();
        tally.begin_totals(1_000);
        for intended in [999, 1_000] {
            tally.scheduled(intended);
            tally.sent(intended);
            tally.lag(intended, intended + 5);
            tally.completed(intended, intended + 5, intended + 50, 1);
        }
        assert_eq!((tally.window.completed, tally.totals.counts.completed, tally.totals.misses), (2, 1, 1));
        assert_eq!(tally.window_latencies.lag.total(), 2);
        assert_eq!(tally.totals.latencies.response.max_ns(), 50);
        assert_eq!(tally.totals.latencies.service.max_ns(), 45);
    }

    /// Each cause of failure has its own count, and all are in `failed`.
    #[test]
    fn causes_are_kept_apart() {
        let mut tally = Tally::new();
        for cause in [Cause::Answer, Cause::Connection, Cause::Timeout, Cause::Timeout, Cause::Abandoned] {
            tally.failed(1, cause);
        }
        let totals = tally.begin_totals(0);
        assert_eq!(totals.counts.failed, 5);
        let causes =
            (totals.failed_answer, totals.failed_connection, totals.failed_timeout, totals.failed_abandoned);
        assert_eq!(causes, (1, 1, 2, 1));
    }
}
