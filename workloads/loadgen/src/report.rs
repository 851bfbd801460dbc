//! Results as JSON lines, and as tables for a reader.

use crate::engine::{Observer, Outcome, Window};
use crate::feed::Feed;
use crate::histogram::Histogram;
use crate::units::show_ns;
use crate::verdict::{judge, Limits, Reason};
use serde::Serialize;
use std::io::{Error, Result, Write};

pub const VERSION: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    pub count: u64,
    pub p50: u64,
    pub p90: u64,
    pub p95: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
}

impl Percentiles {
    pub fn of(histogram: &Histogram) -> Self {
        Self {
            count: histogram.total(),
            p50: histogram.percentile_ns(500_000),
            p90: histogram.percentile_ns(900_000),
            p95: histogram.percentile_ns(950_000),
            p99: histogram.percentile_ns(990_000),
            p999: histogram.percentile_ns(999_000),
            max: histogram.max_ns(),
        }
    }
}

#[derive(Serialize)]
struct IntervalLine {
    version: u32,
    kind: &'static str,
    window_start_ns: u64,
    window_end_ns: u64,
    rate_per_s: u64,
    scheduled: u64,
    sent: u64,
    completed: u64,
    failed: u64,
    unsent: u64,
    outstanding: u64,
    oldest_outstanding_ns: u64,
    response_ns: Percentiles,
    service_ns: Percentiles,
    lag_ns: Percentiles,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_histogram: Option<Vec<u64>>,
}

/// The totals of a run, a step of a scan or a probe of a search.
#[derive(Clone, Serialize)]
pub struct TotalsLine {
    pub version: u32,
    pub kind: &'static str,
    pub mode: &'static str,
    /// Rate asked for; of a profile or a rate changed while running, the mean.
    pub rate_per_s: u64,
    pub achieved_per_s: u64,
    pub measured_ns: u64,
    pub scheduled: u64,
    pub sent: u64,
    pub completed: u64,
    pub failed: u64,
    pub unsent: u64,
    pub failed_answer: u64,
    pub failed_connection: u64,
    pub failed_timeout: u64,
    pub failed_abandoned: u64,
    pub misses: u64,
    pub reconnects: u64,
    pub response_ns: Percentiles,
    pub service_ns: Percentiles,
    pub lag_ns: Percentiles,
    pub cpu_user_ns: u64,
    pub cpu_system_ns: u64,
    pub cpu_per_request_ns: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_failure: String,
    pub valid: bool,
    pub reasons: Vec<Reason>,
}

impl TotalsLine {
    /// `asked_per_s` is `None` where the schedule itself tells the rate (a profile, a closed loop).
    pub fn of(
        kind: &'static str,
        mode: &'static str,
        asked_per_s: Option<u64>,
        outcome: &Outcome,
        limits: Limits,
    ) -> Self {
        let totals = &outcome.totals;
        let counts = totals.counts;
        let per_s = |n: u64| (n as f64 * 1e9 / (outcome.measured_ns.max(1) as f64)).round() as u64;
        let reasons = judge(totals, limits);
        Self {
            version: VERSION,
            kind,
            mode,
            rate_per_s: asked_per_s.unwrap_or_else(|| per_s(counts.scheduled)),
            achieved_per_s: per_s(counts.completed),
            measured_ns: outcome.measured_ns,
            scheduled: counts.scheduled,
            sent: counts.sent,
            completed: counts.completed,
            failed: counts.failed,
            unsent: counts.unsent,
            failed_answer: totals.failed_answer,
            failed_connection: totals.failed_connection,
            failed_timeout: totals.failed_timeout,
            failed_abandoned: totals.failed_abandoned,
            misses: totals.misses,
            reconnects: totals.reconnects,
            response_ns: Percentiles::of(&totals.latencies.response),
            service_ns: Percentiles::of(&totals.latencies.service),
            lag_ns: Percentiles::of(&totals.latencies.lag),
            cpu_user_ns: outcome.user_ns,
            cpu_system_ns: outcome.system_ns,
            cpu_per_request_ns: (outcome.user_ns + outcome.system_ns) / counts.sent.max(1),
            last_failure: outcome.last_failure.clone(),
            valid: reasons.is_empty(),
            reasons,
        }
    }
}

/// Where JSON lines and tables go.
pub struct Report {
    lines: Box<dyn Write>,
    /// Rows of tables are for stderr.
    tables: bool,
    interval_histograms: bool,
}

impl Report {
    pub fn new(lines: Box<dyn Write>, tables: bool, interval_histograms: bool) -> Self {
        Self { lines, tables, interval_histograms }
    }

    pub fn line<T: Serialize>(&mut self, line: &T) -> Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let written = self.lines.write_all(&text).and_then(|()| self.lines.flush());
        written.map_err(|e| Error::new(e.kind(), format!("the report cannot be written: {e}")))
    }

    pub fn table_head(&self) {
        if self.tables {
            eprintln!(
                "{:>9} {:>9} {:>8} {:>8} | {:>9} {:>9} {:>9} {:>9} | {:>9} {:>9} |",
                "rate/s", "done/s", "failed", "unsent", "p50", "p95", "p99", "max", "serv. p99", "lag p99"
            );
        }
    }

    pub fn table_row(&self, line: &TotalsLine, remark: &str) {
        if self.tables {
            let reasons: Vec<&str> = line.reasons.iter().map(|reason| reason.text.as_str()).collect();
            eprintln!(
                "{:>9} {:>9} {:>8} {:>8} | {:>9} {:>9} {:>9} {:>9} | {:>9} {:>9} | {remark}{}",
                line.rate_per_s,
                line.achieved_per_s,
                line.failed,
                line.unsent,
                show_ns(line.response_ns.p50),
                show_ns(line.response_ns.p95),
                show_ns(line.response_ns.p99),
                show_ns(line.response_ns.max),
                show_ns(line.service_ns.p99),
                show_ns(line.lag_ns.p99),
                if reasons.is_empty() { String::new() } else { format!("invalid: {}", reasons.join("; ")) },
            );
        }
    }
}

/// Everything that wants to see the windows.
pub struct Outputs {
    pub report: Report,
    pub feed: Option<Feed>,
}

impl Observer for Outputs {
    fn window(&mut self, window: &Window) -> Result<()> {
        if let Some(feed) = &mut self.feed {
            feed.window(window)?;
        }
        let latencies = window.latencies;
        let histogram = self.report.interval_histograms.then(|| latencies.response.sparse());
        self.report.line(&IntervalLine {
            version: VERSION,
            kind: "interval",
            window_start_ns: window.start_ns,
            window_end_ns: window.end_ns,
            rate_per_s: window.rate_per_s,
            scheduled: window.counts.scheduled,
            sent: window.counts.sent,
            completed: window.counts.completed,
            failed: window.counts.failed,
            unsent: window.counts.unsent,
            outstanding: window.outstanding,
            oldest_outstanding_ns: window.oldest_outstanding_ns,
            response_ns: Percentiles::of(&latencies.response),
            service_ns: Percentiles::of(&latencies.service),
            lag_ns: Percentiles::of(&latencies.lag),
            response_histogram: histogram,
        })
    }
}
