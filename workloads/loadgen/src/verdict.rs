//! Whether a measurement can be believed: whether the generator did what its schedule asked.

use crate::engine::Totals;
use crate::units;
use serde::Serialize;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub lag_percentile_ppm: u64,
    pub max_lag_ns: u64,
    pub max_deviation_ppm: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The generator sent late by its own fault.
    SendLag,
    /// Sends fall short of the schedule.
    Unsent,
    /// No request was answered well.
    NothingCompleted,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    pub code: Code,
    pub text: String,
}

/// Reasons not to believe the totals; none if they are sound.
pub fn judge(totals: &Totals, limits: Limits) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let counts = totals.counts;
    let lag = totals.latencies.lag.percentile_ns(limits.lag_percentile_ppm);
    if lag > limits.max_lag_ns {
        let text = format!(
            "send lag {} is {}, above the bound of {}: the generator was late by its own fault; give it CPU time of its own",
            units::percentile_name(limits.lag_percentile_ppm),
            units::show_ns(lag),
            units::show_ns(limits.max_lag_ns)
        );
        reasons.push(Reason { code: Code::SendLag, text });
    }
    let missing = counts.scheduled.saturating_sub(counts.sent);
    if u128::from(missing) * 1_000_000 > u128::from(counts.scheduled) * u128::from(limits.max_deviation_ppm) {
        let text = format!(
            "{missing} of {} requests due were never sent: the service did not keep up, and percentiles leave them out",
            counts.scheduled
        );
        reasons.push(Reason { code: Code::Unsent, text });
    }
    if counts.scheduled > 0 && counts.completed == 0 {
        let text = format!("none of {} requests was answered well", counts.scheduled);
        reasons.push(Reason { code: Code::NothingCompleted, text });
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { lag_percentile_ppm: 990_000, max_lag_ns: 2_000_000, max_deviation_ppm: 1_000 };

    fn codes(totals: &Totals) -> Vec<Code> {
        judge(totals, LIMITS).iter().map(|reason| reason.code).collect()
    }

    /// A late generator, missing sends and a run without answers each have their reason; a sound run has none.
    #[test]
    fn reasons() {
        let mut totals = Totals::new();
        assert_eq!(codes(&totals), []);
        totals.counts.scheduled = 10_000;
        totals.counts.sent = 9_990;
        totals.counts.completed = 9_000;
        (0..9_990).for_each(|_| totals.latencies.lag.record(1_000_000));
        assert_eq!(codes(&totals), [], "one in a thousand is within the bound");
        totals.counts.sent = 9_989;
        assert_eq!(codes(&totals), [Code::Unsent]);
        (0..200).for_each(|_| totals.latencies.lag.record(3_000_000));
        assert_eq!(codes(&totals), [Code::SendLag, Code::Unsent]);
        totals.counts.completed = 0;
        assert_eq!(codes(&totals), [Code::SendLag, Code::Unsent, Code::NothingCompleted]);
    }
}
