//! A small seeded generator of its own: the schedule of a seed must stay the same whatever version of whichever
//! library is built in, which `rand` does not promise for its standard generator.

/// One step of `SplitMix64` (Steele, Lea and Flood, 2014): a good mixing function of 64 bits.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// `SplitMix64` as a stream; one is made for each request from the seed and the request's number.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The stream numbered `stream` of a seed; streams do not overlap in practice.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self { state: mix(mix(seed) ^ mix(stream ^ 0x5DEE_CE66_D1CE_4E5B)) }
    }

    pub fn next_u64(&mut self) -> u64 {
        let value = mix(self.state);
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        value
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.uniform()).ln()
    }

    /// Uniform in 0..n.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exponential has mean 1 and variance 1, within four standard errors.
    #[test]
    fn exponential_moments() {
        let mut rng = Rng::new(7, 0);
        let n = 200_000;
        let values: Vec<f64> = (0..n).map(|_| rng.exponential()).collect();
        let mean = values.iter().sum::<f64>() / f64::from(n);
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / f64::from(n);
        assert!((mean - 1.0).abs() < 0.009, "{mean}");
        assert!((variance - 1.0).abs() < 0.026, "{variance}");
    }

    /// Seeds and streams give streams of their own, and the same pair the same one.
    #[test]
    fn streams_are_separate_and_repeatable() {
        let first = |seed, stream| Rng::new(seed, stream).next_u64();
        assert_eq!(first(1, 2), first(1, 2));
        assert_ne!(first(1, 2), first(2, 1));
        assert_ne!(first(1, 2), first(1, 3));
    }
}
