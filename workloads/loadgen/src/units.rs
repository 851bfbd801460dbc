//! Quantities as people write them, turned into integers in base units.

use serde::Serialize;

const DURATION_UNITS: [(&str, f64); 6] =
    [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9)];

/// Splits `"1.5ms"` into the number and what follows it.
fn split_number(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number = text[..end].parse::<f64>().ok()?;
    Some((number, text[end..].trim()))
}

/// A duration such as `600us`, `500ms`, `1.5s`, `2m`; a bare `0` needs no unit. Nanoseconds.
pub fn duration_ns(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("`{text}` is no duration; write a number and a unit, such as 600us, 500ms, 10s or 2m");
    let (number, unit) = split_number(text.trim()).ok_or_else(wrong)?;
    if unit.is_empty() && number == 0.0 {
        return Ok(0);
    }
    let (_, scale) = DURATION_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let ns = number * scale;
    if ns >= 1e18 {
        return Err(format!("`{text}` is longer than this program can count"));
    }
    Ok(ns.round() as u64)
}

/// A whole number of requests per second, such as `500`, `5k`, `2.5k`, `1M`.
pub fn rate_per_s(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("`{text}` is no rate; write whole requests per second, such as 500, 5k, 2.5k or 1M");
    let (number, unit) = split_number(text.trim()).ok_or_else(wrong)?;
    let rate = number
        * match unit {
            "" => 1.0,
            "k" | "K" => 1e3,
            "M" => 1e6,
            _ => return Err(wrong()),
        };
    if (rate - rate.round()).abs() > 1e-6 {
        return Err(wrong());
    }
    if rate > 1e8 {
        return Err(format!("`{text}` is more than the 100M requests per second that can be scheduled"));
    }
    Ok(rate.round() as u64)
}

/// Bytes, such as `100`, `4KiB`, `1MiB` (or `4k`, `1M`, of 1024).
pub fn size_bytes(text: &str) -> Result<usize, String> {
    let wrong = || format!("`{text}` is no size; write bytes, such as 100, 4KiB or 1MiB");
    let (number, unit) = split_number(text.trim()).ok_or_else(wrong)?;
    let scale = match unit {
        "" | "B" => 1.0,
        "k" | "K" | "KiB" => 1024.0,
        "M" | "MiB" => 1024.0 * 1024.0,
        _ => return Err(wrong()),
    };
    Ok((number * scale).round() as usize)
}

/// A share such as `1%` or `0.01`, as parts per million.
pub fn share_ppm(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no share; write a percentage such as 1% or 0.5%");
    let (number, unit) = split_number(text.trim()).ok_or_else(wrong)?;
    let ppm = match unit {
        "%" => number * 1e4,
        "" => number * 1e6,
        _ => return Err(wrong()),
    };
    if !(0.0..=1e6).contains(&ppm) {
        return Err(wrong());
    }
    Ok(ppm.round() as u64)
}

/// A percentile such as `p99` or `99.9`, as parts per million of the requests (`p99` is 990,000).
pub fn percentile_ppm(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no percentile; write p50, p95, p99 or p99.9");
    let number: f64 = text.trim().trim_start_matches('p').parse().map_err(|_| wrong())?;
    if !(number > 0.0 && number < 100.0) {
        return Err(wrong());
    }
    Ok((number * 1e4).round() as u64)
}

/// `p99` for 990,000, `p99.9` for 999,000.
pub fn percentile_name(ppm: u64) -> String {
    format!("p{}", ppm as f64 / 1e4)
}

/// A tail-latency target, written `p99:10ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Target {
    pub percentile_ppm: u64,
    pub latency_ns: u64,
}

pub fn target(text: &str) -> Result<Target, String> {
    let (percentile, latency) = text
        .split_once(':')
        .ok_or_else(|| format!("`{text}` is no target; write percentile:latency, such as p99:10ms"))?;
    let target = Target { percentile_ppm: percentile_ppm(percentile)?, latency_ns: duration_ns(latency)? };
    if target.latency_ns == 0 {
        return Err(format!("`{text}`: a target of 0 can never be met"));
    }
    Ok(target)
}

/// Rates to walk through, written `MIN:MAX:STEP`.
#[expect(clippy::struct_field_names, reason = "the unit belongs to each name")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RateRange {
    pub min_per_s: u64,
    pub max_per_s: u64,
    pub step_per_s: u64,
}

impl RateRange {
    pub fn rates(self) -> impl Iterator<Item = u64> {
        (self.min_per_s..=self.max_per_s).step_by(self.step_per_s as usize)
    }
}

pub fn rate_range(text: &str) -> Result<RateRange, String> {
    let parts: Vec<&str> = text.split(':').collect();
    let [min, max, step] = parts[..] else {
        return Err(format!("`{text}` is no range of rates; write MIN:MAX:STEP, such as 1k:10k:1k"));
    };
    let range =
        RateRange { min_per_s: rate_per_s(min)?, max_per_s: rate_per_s(max)?, step_per_s: rate_per_s(step)? };
    if range.min_per_s == 0 || range.step_per_s == 0 || range.max_per_s < range.min_per_s {
        return Err(format!("`{text}`: MIN and STEP must be above 0, and MAX not below MIN"));
    }
    Ok(range)
}

/// Nanoseconds for a reader: three digits and a unit.
pub fn show_ns(ns: u64) -> String {
    match ns {
        0..=9_999 => format!("{ns} ns"),
        10_000..=999_999 => format!("{:.0} us", ns as f64 / 1e3),
        1_000_000..=9_999_999_999 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Durations are read in every unit, and a missing unit is refused.
    #[test]
    fn durations() {
        assert_eq!(duration_ns("600us"), Ok(600_000));
        assert_eq!(duration_ns("1.5s"), Ok(1_500_000_000));
        assert_eq!(duration_ns("2m"), Ok(120_000_000_000));
        assert_eq!(duration_ns("0"), Ok(0));
        for bad in ["", "10", "ms", "1.2.3s", "-1s", "5 parsecs"] {
            assert!(duration_ns(bad).is_err(), "{bad}");
        }
    }

    /// Rates take k and M, and only whole requests per second.
    #[test]
    fn rates() {
        assert_eq!(rate_per_s("2.5k"), Ok(2_500));
        assert_eq!(rate_per_s("0"), Ok(0));
        assert_eq!(rate_per_s("1M"), Ok(1_000_000));
        for bad in ["", "0.5", "5x", "k", "-3", "1000M"] {
            assert!(rate_per_s(bad).is_err(), "{bad}");
        }
    }

    /// Targets, ranges and shares are read, and nonsense is refused.
    #[test]
    fn composites() {
        assert_eq!(target("p99.9:5ms"), Ok(Target { percentile_ppm: 999_000, latency_ns: 5_000_000 }));
        assert!(target("p99").is_err() && target("p100:1ms").is_err() && target("p99:0s").is_err());
        assert_eq!(rate_range("1k:3k:1k").unwrap().rates().collect::<Vec<_>>(), [1000, 2000, 3000]);
        assert!(
            rate_range("1k:3k").is_err() && rate_range("3k:1k:1k").is_err() && rate_range("0:1:0").is_err()
        );
        assert_eq!(share_ppm("1%"), Ok(10_000));
        assert!(share_ppm("101%").is_err());
        assert_eq!(size_bytes("4KiB"), Ok(4096));
    }
}
