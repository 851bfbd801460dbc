//! When requests are due: a rate profile, and Poisson arrivals drawn from it.

use crate::rng::Rng;
use crate::units;
use clap::ValueEnum;
use serde::Serialize;

const NS_PER_S: f64 = 1e9;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// each line's rate holds until the next line's time
    Step,
    /// the rate runs straight from one line to the next
    Linear,
}

/// A stretch of time over which the rate is constant or changes linearly. Times in ns since the start, rates per ns.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Segment {
    start: f64,
    end: f64,
    rate_start: f64,
    rate_end: f64,
}

impl Segment {
    fn forever(start: f64, rate_per_s: u64) -> Self {
        let rate = rate_per_s as f64 / NS_PER_S;
        Self { start, end: f64::INFINITY, rate_start: rate, rate_end: rate }
    }

    fn slope(&self) -> f64 {
        if self.end.is_finite() && self.end > self.start {
            (self.rate_end - self.rate_start) / (self.end - self.start)
        } else {
            0.0
        }
    }

    fn rate_at(&self, t: f64) -> f64 {
        self.rate_start + self.slope() * (t - self.start)
    }

    /// Expected number of arrivals between two times inside the segment.
    fn expected(&self, from: f64, to: f64) -> f64 {
        if to <= from || (self.rate_start == 0.0 && self.rate_end == 0.0) {
            return 0.0;
        }
        if self.slope() == 0.0 {
            return self.rate_start * (to - from);
        }
        (self.rate_at(from) + self.slope() * (to - from) * 0.5) * (to - from)
    }

    /// The time at which `amount` arrivals are expected after `from`; only for an amount the segment holds.
    fn invert(&self, from: f64, amount: f64) -> f64 {
        let rate = self.rate_at(from);
        let root = (rate * rate + 2.0 * self.slope() * amount).max(0.0).sqrt();
        from + 2.0 * amount / (rate + root)
    }
}

/// The rate asked for, over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    segments: Vec<Segment>,
    /// Time of the last line of a profile file, in ns.
    pub last_line_ns: u64,
}

impl Profile {
    pub fn constant(rate_per_s: u64) -> Self {
        Self { segments: vec![Segment::forever(0.0, rate_per_s)], last_line_ns: 0 }
    }

    /// Reads lines `time rate`; `#` begins a comment. The first time must be 0, and times must rise.
    pub fn parse(text: &str, shape: Shape) -> Result<Self, String> {
        let points = parse_points(text)?;
        let mut segments = Vec::with_capacity(points.len());
        for pair in points.windows(2) {
            let [(start, rate), (end, next)] = [pair[0], pair[1]];
            let rate_end = if shape == Shape::Linear { next } else { rate };
            segments.push(Segment {
                start: start as f64,
                end: end as f64,
                rate_start: rate as f64 / NS_PER_S,
                rate_end: rate_end as f64 / NS_PER_S,
            });
        }
        let (last_line_ns, rate) = points[points.len() - 1];
        segments.push(Segment::forever(last_line_ns as f64, rate));
        Ok(Self { segments, last_line_ns })
    }

    /// Expected number of arrivals between two times, in ns since the start.
    fn expected(&self, from: f64, to: f64) -> f64 {
        self.segments.iter().map(|s| s.expected(from.max(s.start), to.min(s.end))).sum()
    }

    /// Mean rate between two times, rounded to whole requests per second.
    pub fn mean_rate_per_s(&self, from_ns: u64, to_ns: u64) -> u64 {
        let length = to_ns.saturating_sub(from_ns) as f64;
        if length == 0.0 {
            return 0;
        }
        (self.expected(from_ns as f64, to_ns as f64) / length * NS_PER_S).round() as u64
    }

    /// From `at_ns` on the rate is constant, whatever the profile said.
    fn replace_from(&mut self, at_ns: f64, rate_per_s: u64) {
        self.segments.retain(|s| s.start < at_ns);
        if let Some(last) = self.segments.last_mut() {
            last.rate_end = last.rate_at(at_ns.min(last.end));
            last.end = last.end.min(at_ns);
        }
        self.segments.push(Segment::forever(at_ns, rate_per_s));
    }
}

fn parse_points(text: &str) -> Result<Vec<(u64, u64)>, String> {
    let mut points: Vec<(u64, u64)> = Vec::new();
    for (number, line) in text.lines().enumerate().map(|(i, line)| (i + 1, line)) {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [time, rate] = fields[..] else {
            return Err(format!("line {number}: `{line}`: write a time and a rate, such as `10s 5000`"));
        };
        let time = units::duration_ns(time).map_err(|e| format!("line {number}: {e}"))?;
        let rate = units::rate_per_s(rate).map_err(|e| format!("line {number}: {e}"))?;
        match points.last() {
            None if time != 0 => return Err(format!("line {number}: the first line must be at 0s")),
            Some((before, _)) if time <= *before => {
                return Err(format!("line {number}: its time must be later than the line before"));
            }
            _ => points.push((time, rate)),
        }
    }
    if points.is_empty() {
        return Err("it holds no line; write at least one, such as `0s 1000`".to_string());
    }
    Ok(points)
}

/// Poisson arrivals by inversion of the integrated rate, correct also where the rate changes. A pure function of seed,
/// stream and profile: what the server does has no part in it.
pub struct Arrivals {
    profile: Profile,
    rng: Rng,
    /// Where the wait for the next arrival began, in ns since the start.
    position: f64,
    /// Expected arrivals still to pass from there until the next one.
    remaining: f64,
    next: f64,
}

impl Arrivals {
    pub fn new(profile: Profile, seed: u64, stream: u64) -> Self {
        let mut rng = Rng::new(seed, stream);
        let remaining = rng.exponential();
        let mut arrivals = Self { profile, rng, position: 0.0, remaining, next: 0.0 };
        arrivals.next = arrivals.find_next();
        arrivals
    }

    fn find_next(&self) -> f64 {
        let mut left = self.remaining;
        for segment in self.profile.segments.iter().filter(|s| s.end > self.position) {
            let from = self.position.max(segment.start);
            let held = segment.expected(from, segment.end);
            if left < held {
                return segment.invert(from, left);
            }
            left -= held;
        }
        f64::INFINITY
    }

    /// Time of the next arrival in ns since the start; `u64::MAX` if the rate stays zero.
    pub fn next_ns(&self) -> u64 {
        if self.next.is_finite() {
            self.next as u64
        } else {
            u64::MAX
        }
    }

    /// Goes on to the arrival after the next one.
    pub fn advance(&mut self) {
        self.position = self.next;
        self.remaining = self.rng.exponential();
        self.forget_past();
        self.next = self.find_next();
    }

    /// A long profile is not searched from its beginning for every arrival; one past minute is kept for reports.
    fn forget_past(&mut self) {
        let horizon = self.position - 60.0 * NS_PER_S;
        if self.profile.segments.first().is_some_and(|s| s.end < horizon) {
            self.profile.segments.remove(0);
        }
    }

    /// Changes the rate from `now_ns` on. The part of the wait that has passed stays passed.
    pub fn set_rate(&mut self, now_ns: u64, rate_per_s: u64) {
        let now = (now_ns as f64).max(self.position);
        self.remaining = (self.remaining - self.profile.expected(self.position, now)).max(0.0);
        self.position = now;
        self.profile.replace_from(now, rate_per_s);
        self.next = self.find_next();
    }

    pub fn mean_rate_per_s(&self, from_ns: u64, to_ns: u64) -> u64 {
        self.profile.mean_rate_per_s(from_ns, to_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(profile: Profile, seed: u64, until_ns: u64) -> Vec<u64> {
        let mut arrivals = Arrivals::new(profile, seed, 0);
        let mut due = Vec::new();
        while arrivals.next_ns() < until_ns {
            due.push(arrivals.next_ns());
            arrivals.advance();
        }
        due
    }

    fn within(seen: usize, expected: f64) {
        let error = 5.0 * expected.sqrt();
        assert!((seen as f64 - expected).abs() < error, "{seen}, expected {expected} +- {error}");
    }

    /// Gaps of a constant rate have the mean and the variance of the exponential, and are not correlated.
    #[test]
    fn constant_rate_is_poisson() {
        let seen = times(Profile::constant(5_000), 1, 40_000_000_000);
        within(seen.len(), 200_000.0);
        let gaps: Vec<f64> = seen.windows(2).map(|w| (w[1] - w[0]) as f64 / 200_000.0).collect();
        let n = gaps.len() as f64;
        let mean = gaps.iter().sum::<f64>() / n;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / n;
        let lag1 = gaps.windows(2).map(|w| (w[0] - mean) * (w[1] - mean)).sum::<f64>() / n;
        assert!((mean - 1.0).abs() < 0.012, "{mean}");
        assert!((variance - 1.0).abs() < 0.03, "{variance}");
        assert!(lag1.abs() < 0.012, "{lag1}");
    }

    /// On a linear ramp from 0 the mean count follows the square of time, in each tenth of it.
    #[test]
    fn linear_ramp_counts() {
        let profile = Profile::parse("0s 0\n10s 20k", Shape::Linear).unwrap();
        let seen = times(profile, 3, 10_000_000_000);
        within(seen.len(), 100_000.0);
        for tenth in 0..10u64 {
            let inside = seen.iter().filter(|t| *t / 1_000_000_000 == tenth).count();
            within(inside, 1_000.0 * (2 * tenth + 1) as f64);
        }
    }

    /// A ramp downwards to zero ends, and the rate after the last line holds.
    #[test]
    fn ramp_down_and_hold() {
        let profile = Profile::parse("0s 10k\n2s 0", Shape::Linear).unwrap();
        within(times(profile, 3, 60_000_000_000).len(), 10_000.0);
        let profile = Profile::parse("0s 0\n1s 0\n2s 1k", Shape::Linear).unwrap();
        within(times(profile, 3, 12_000_000_000).len(), 500.0 + 10_000.0);
    }

    /// Each line of a step profile holds until the next, also a line of zero.
    #[test]
    fn step_profile_counts() {
        let profile = Profile::parse("# load\n0s 1000\n2s 0 # rest\n3s 8k\n", Shape::Step).unwrap();
        assert_eq!(profile.last_line_ns, 3_000_000_000);
        assert_eq!(profile.mean_rate_per_s(1_500_000_000, 2_500_000_000), 500);
        let seen = times(profile, 9, 5_000_000_000);
        let count =
            |from: u64, to: u64| seen.iter().filter(|t| (from..to).contains(&(**t / 1_000_000))).count();
        within(count(0, 2_000), 2_000.0);
        assert_eq!(count(2_000, 3_000), 0);
        within(count(3_000, 5_000), 16_000.0);
    }

    /// The same seed gives the same arrivals, another seed others.
    #[test]
    fn deterministic() {
        let run = |seed| times(Profile::parse("0s 100\n1s 5k", Shape::Linear).unwrap(), seed, 2_000_000_000);
        assert_eq!(run(4), run(4));
        assert_ne!(run(4), run(5));
    }

    /// A change of rate while running takes effect at once, also out of a rate of zero.
    #[test]
    fn rate_change_while_running() {
        let mut arrivals = Arrivals::new(Profile::constant(0), 2, 0);
        assert_eq!(arrivals.next_ns(), u64::MAX);
        arrivals.set_rate(1_000_000_000, 10_000);
        let mut count = 0;
        while arrivals.next_ns() < 3_000_000_000 {
            assert!(arrivals.next_ns() >= 1_000_000_000);
            count += 1;
            arrivals.advance();
        }
        within(count, 20_000.0);
        assert_eq!(arrivals.mean_rate_per_s(0, 2_000_000_000), 5_000);
        arrivals.set_rate(3_000_000_000, 0);
        assert_eq!(arrivals.next_ns(), u64::MAX);
    }

    /// A profile that cannot be read is refused with the line at fault.
    #[test]
    fn bad_profiles() {
        for (text, part) in [
            ("", "no line"),
            ("1s 100", "line 1"),
            ("0s 100\n\n0s 5", "line 3"),
            ("0s 100\n5s", "line 2"),
            ("0s x", "no rate"),
            ("0 1\n10 5", "no duration"),
        ] {
            let error = Profile::parse(text, Shape::Step).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }
}
