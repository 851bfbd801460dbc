//! The fixed log-linear buckets of docs/histogram-socket.md: 128 to each power of two, in nanoseconds.

const BUCKETS: usize = 7168;
const LARGEST_NS: u64 = (1 << 62) - 1;

/// The bucket of a value; values of 2^62 ns and above count in the last one.
pub fn bucket(value_ns: u64) -> usize {
    let value = value_ns.min(LARGEST_NS);
    let bits = 64 - value.leading_zeros();
    let shift = bits.saturating_sub(8);
    (128 * shift) as usize + (value >> shift) as usize
}

/// The largest value that falls into a bucket.
pub fn upper_ns(bucket: usize) -> u64 {
    let shift = (bucket / 128).saturating_sub(1);
    (((bucket - 128 * shift + 1) as u64) << shift) - 1
}

/// Counts of latencies. Every value read from it is the upper end of its bucket, so a tail is never understated.
#[derive(Clone)]
pub struct Histogram {
    counts: Box<[u64]>,
    total: u64,
    lowest: usize,
    highest: usize,
}

impl Histogram {
    pub fn new() -> Self {
        Self { counts: vec![0; BUCKETS].into_boxed_slice(), total: 0, lowest: BUCKETS, highest: 0 }
    }

    pub fn record(&mut self, value_ns: u64) {
        let i = bucket(value_ns);
        self.counts[i] += 1;
        self.total += 1;
        self.lowest = self.lowest.min(i);
        self.highest = self.highest.max(i);
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn clear(&mut self) {
        if self.total > 0 {
            self.counts[self.lowest..=self.highest].fill(0);
        }
        self.total = 0;
        self.lowest = BUCKETS;
        self.highest = 0;
    }

    fn used(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let end = if self.total == 0 { 0 } else { self.highest + 1 };
        (self.lowest.min(end)..end).map(|i| (i, self.counts[i])).filter(|(_, count)| *count > 0)
    }

    /// The smallest bucket end that at least `ppm` millionths of the values do not exceed; 0 if there are none.
    pub fn percentile_ns(&self, ppm: u64) -> u64 {
        let rank = (u128::from(self.total) * u128::from(ppm)).div_ceil(1_000_000).max(1) as u64;
        let mut seen = 0;
        for (i, count) in self.used() {
            seen += count;
            if seen >= rank {
                return upper_ns(i);
            }
        }
        0
    }

    pub fn max_ns(&self) -> u64 {
        if self.total == 0 {
            0
        } else {
            upper_ns(self.highest)
        }
    }

    /// How many values lie above `limit_ns`; a bucket that only begins below it counts as above.
    pub fn above(&self, limit_ns: u64) -> u64 {
        self.used().filter(|(i, _)| upper_ns(*i) > limit_ns).map(|(_, count)| count).sum()
    }

    /// `[bucket, count, bucket, count, ...]`, as the wire has it.
    pub fn sparse(&self) -> Vec<u64> {
        self.used().flat_map(|(i, count)| [i as u64, count]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// The test vectors of the document hold.
    #[test]
    fn document_vectors() {
        let vectors = [
            (0, 0),
            (255, 255),
            (256, 256),
            (257, 256),
            (511, 383),
            (512, 384),
            (1000, 506),
            (1_000_000, 1780),
            (10_000_000, 2200),
            ((1 << 62) - 1, 7167),
            (u64::MAX, 7167),
        ];
        for (value, expected) in vectors {
            assert_eq!(bucket(value), expected, "{value}");
        }
    }

    /// Each bucket ends where the next begins, and is at most 1/128 wide.
    #[test]
    fn buckets_tile() {
        for i in 0..BUCKETS - 1 {
            assert_eq!(bucket(upper_ns(i)), i);
            assert_eq!(bucket(upper_ns(i) + 1), i + 1);
            let lower = if i == 0 { 0 } else { upper_ns(i - 1) + 1 };
            assert!((upper_ns(i) - lower) as f64 <= lower as f64 / 128.0, "{i}");
        }
    }

    /// Percentiles equal those of the sorted values, taken to the ends of their buckets.
    #[test]
    fn percentiles_match_sorted_values() {
        let mut rng = Rng::new(5, 0);
        let mut values: Vec<u64> = (0..10_001).map(|_| (rng.exponential() * 1e6) as u64).collect();
        let mut histogram = Histogram::new();
        for value in &values {
            histogram.record(*value);
        }
        values.sort_unstable();
        for ppm in [1, 500_000, 900_000, 950_000, 990_000, 999_000, 1_000_000] {
            let rank = (values.len() as u64 * ppm).div_ceil(1_000_000).max(1) as usize;
            assert_eq!(histogram.percentile_ns(ppm), upper_ns(bucket(values[rank - 1])), "{ppm}");
        }
        assert_eq!(histogram.max_ns(), upper_ns(bucket(values[10_000])));
    }

    /// An emptied histogram is as new, and the sparse form holds every count once, ascending.
    #[test]
    fn clear_and_sparse() {
        let mut histogram = Histogram::new();
        assert_eq!(
            (histogram.percentile_ns(990_000), histogram.max_ns(), histogram.sparse().len()),
            (0, 0, 0)
        );
        for value in [5, 1_000_000, 5, 300] {
            histogram.record(value);
        }
        assert_eq!(histogram.sparse(), [5, 2, bucket(300) as u64, 1, 1780, 1]);
        assert_eq!(histogram.above(300), 2, "the bucket of 300 reaches to 301");
        assert_eq!(histogram.above(301), 1);
        histogram.clear();
        assert_eq!((histogram.total(), histogram.sparse().len(), histogram.max_ns()), (0, 0, 0));
        histogram.record(7);
        assert_eq!(histogram.sparse(), [7, 1]);
    }
}
