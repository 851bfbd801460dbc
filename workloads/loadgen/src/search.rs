//! The load-latency curve, and the highest rate within a target.

use crate::engine::{Outcome, Totals};
use crate::failure::Failure;
use crate::report::{TotalsLine, VERSION};
use crate::session::{End, Session};
use crate::units::{percentile_name, show_ns, RateRange, Target};
use crate::verdict::Code;
use serde_json::json;

/// Whether enough requests were answered in time. One that failed or was never sent is as one that took for ever.
fn meets(totals: &Totals, target: Target) -> bool {
    let counts = totals.counts;
    let late = totals.latencies.response.above(target.latency_ns) + counts.failed + counts.unsent;
    let allowed = u128::from(counts.scheduled) * u128::from(1_000_000 - target.percentile_ppm);
    counts.completed > 0 && u128::from(late) * 1_000_000 <= allowed
}

/// The generator itself was late: what a step shows may be its doing and not the service's.
fn generator_late(line: &TotalsLine) -> bool {
    line.reasons.iter().any(|reason| reason.code == Code::SendLag)
}

/// Where the next probe goes: doubling until one misses the target, then halving the bracket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bracket {
    min: u64,
    max: u64,
    tolerance_ppm: u64,
    /// Highest rate seen to meet the target.
    good: Option<u64>,
    /// Lowest rate seen to miss it.
    bad: Option<u64>,
}

impl Bracket {
    /// `None` when the answer is known.
    fn next(&self) -> Option<u64> {
        match (self.good, self.bad) {
            (None, None) => Some(self.min),
            (None, Some(_)) => None,
            (Some(good), None) => (good < self.max).then(|| (good * 2).min(self.max)),
            (Some(good), Some(bad)) => {
                let wide =
                    u128::from(bad - good) * 1_000_000 > u128::from(good) * u128::from(self.tolerance_ppm);
                (wide && bad - good > 1).then(|| good + (bad - good) / 2)
            }
        }
    }

    fn learn(&mut self, rate: u64, met: bool) {
        if met {
            self.good = Some(rate);
        } else {
            self.bad = Some(rate);
        }
    }
}

impl Session<'_> {
    /// Measures a step at each rate of the range.
    pub fn scan(&mut self, range: RateRange) -> Result<End, Failure> {
        self.engine.observer.report.table_head();
        let mut rows = 0u64;
        let mut sound = true;
        for rate in range.rates() {
            let outcome = self.step(rate)?;
            if outcome.stopped {
                break;
            }
            let line = TotalsLine::of("row", "scan", Some(rate), &outcome, self.limits);
            self.engine.observer.report.line(&line)?;
            self.engine.observer.report.table_row(&line, "");
            sound &= !generator_late(&line);
            rows += 1;
        }
        self.engine.finish_windows()?;
        let complete = rows == range.rates().count() as u64;
        self.engine.observer.report.line(&json!({
            "version": VERSION,
            "kind": "summary",
            "mode": "scan",
            "rows": rows,
            "complete": complete,
            "valid": sound,
            "reasons": late_reasons(sound),
        }))?;
        Ok(if sound { End::Sound } else { End::Invalid })
    }

    /// Brackets, then bisects, and reports each probe.
    pub fn search(&mut self, target: Target) -> Result<End, Failure> {
        let mut bracket = Bracket {
            min: self.args.search_min,
            max: self.args.search_max,
            tolerance_ppm: self.args.search_tolerance,
            good: None,
            bad: None,
        };
        self.engine.observer.report.table_head();
        let mut sound = true;
        let mut probes = 0u64;
        while let Some(rate) = bracket.next() {
            let Some((met, believed)) = self.probe(rate, target)? else {
                break;
            };
            bracket.learn(rate, met);
            // Only the probes at the two ends of the final bracket decide, and a missed one may be the generator's doing.
            sound = if met { sound } else { believed };
            probes += 1;
        }
        self.engine.finish_windows()?;
        let complete = !self.engine.stopped();
        self.search_summary(bracket, target, probes, complete, sound)
    }

    /// Runs a rate as often as asked; whether the majority met the target, and whether the generator was in time.
    /// `None` if stopped.
    fn probe(&mut self, rate: u64, target: Target) -> Result<Option<(bool, bool)>, Failure> {
        let repeats = self.args.search_repeats;
        let (mut met, mut missed, mut late) = (0, 0, 0);
        while met * 2 < repeats && missed * 2 < repeats {
            let outcome = self.step(rate)?;
            if outcome.stopped {
                return Ok(None);
            }
            let good = meets(&outcome.totals, target);
            let line = self.report_probe(rate, target, good, &outcome)?;
            met += u32::from(good);
            missed += u32::from(!good);
            late += u32::from(!good && generator_late(&line));
        }
        Ok(Some((met > missed, late == 0)))
    }

    fn report_probe(
        &mut self,
        rate: u64,
        target: Target,
        good: bool,
        outcome: &Outcome,
    ) -> Result<TotalsLine, Failure> {
        let line = TotalsLine::of("probe", "search", Some(rate), outcome, self.limits);
        let mut value = serde_json::to_value(&line).map_err(std::io::Error::from)?;
        value["met"] = json!(good);
        value["target_ns"] = json!(outcome.totals.latencies.response.percentile_ns(target.percentile_ppm));
        let report = &mut self.engine.observer.report;
        report.line(&value)?;
        report.table_row(&line, if good { "met " } else { "missed " });
        Ok(line)
    }

    fn search_summary(
        &mut self,
        bracket: Bracket,
        target: Target,
        probes: u64,
        complete: bool,
        sound: bool,
    ) -> Result<End, Failure> {
        let bound = match (bracket.good, bracket.bad) {
            (None, _) => "below search_min",
            (Some(_), None) => "search_max",
            _ => "inside",
        };
        let report = &mut self.engine.observer.report;
        report.line(&json!({
            "version": VERSION,
            "kind": "summary",
            "mode": "search",
            "percentile_ppm": target.percentile_ppm,
            "target_ns": target.latency_ns,
            "highest_rate_per_s": bracket.good.unwrap_or(0),
            "lowest_missed_per_s": bracket.bad,
            "bound": bound,
            "probes": probes,
            "complete": complete,
            "valid": sound,
            "reasons": late_reasons(sound),
        }))?;
        if !self.args.json {
            eprintln!(
                "highest rate with {} within {}: {} requests/s ({bound})",
                percentile_name(target.percentile_ppm),
                show_ns(target.latency_ns),
                bracket.good.unwrap_or(0)
            );
        }
        Ok(if sound { End::Sound } else { End::Invalid })
    }
}

fn late_reasons(sound: bool) -> serde_json::Value {
    if sound {
        json!([])
    } else {
        json!([{
            "code": Code::SendLag,
            "text": "the generator was late by its own fault in a step that decides; give it CPU time of its own",
        }])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(limit: u64, min: u64, max: u64) -> (Bracket, Vec<u64>) {
        let mut bracket = Bracket { min, max, tolerance_ppm: 20_000, good: None, bad: None };
        let mut probes = Vec::new();
        while let Some(rate) = bracket.next() {
            bracket.learn(rate, rate <= limit);
            probes.push(rate);
            assert!(probes.len() < 60, "{bracket:?}");
        }
        (bracket, probes)
    }

    /// Wherever the limit lies, the search ends just below it, and says so if it lies outside.
    #[test]
    fn bisection_finds_the_limit() {
        for limit in [1_000, 1_001, 1_999, 2_000, 2_001, 33_333, 999_999] {
            let (bracket, probes) = find(limit, 1_000, 1_000_000);
            let good = bracket.good.unwrap();
            assert!(good <= limit && limit as f64 <= good as f64 * 1.021 + 1.0, "{limit}: {good}");
            assert!(probes.len() <= 20, "{limit}: {probes:?}");
        }
        assert_eq!(find(10, 1_000, 1_000_000).0.good, None);
        assert_eq!(find(u64::MAX, 1_000, 50_000).0.good, Some(50_000));
        assert_eq!(find(1, 1, 100).0.good, Some(1));
    }

    /// Failed and unsent requests count as late ones.
    #[test]
    fn failures_miss_the_target() {
        let target = Target { percentile_ppm: 990_000, latency_ns: 10_000_000 };
        let mut totals = Totals::new();
        totals.counts.scheduled = 1_000;
        totals.counts.completed = 990;
        (0..990).for_each(|_| totals.latencies.response.record(1_000));
        totals.counts.failed = 5;
        totals.counts.unsent = 5;
        assert!(meets(&totals, target));
        totals.counts.unsent = 6;
        assert!(!meets(&totals, target));
        totals.counts.unsent = 0;
        (0..6).for_each(|_| totals.latencies.response.record(20_000_000));
        assert!(!meets(&totals, target));
        assert!(!meets(&Totals::new(), target), "nothing measured meets nothing");
    }
}
