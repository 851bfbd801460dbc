//! Zipf-distributed ranks by rejection-inversion (Hörmann and Derflinger, 1996): constant time, no table.

use crate::rng::Rng;

/// Draws ranks 0..n, rank r with probability proportional to (r + 1)^-exponent; exponent 0 is uniform.
#[derive(Clone, Debug)]
pub struct Zipf {
    n: u64,
    exponent: f64,
    integral_first: f64,
    integral_last: f64,
    accept_width: f64,
}

/// expm1(x) / x, also near 0.
fn expm1_over(x: f64) -> f64 {
    if x.abs() > 1e-8 {
        x.exp_m1() / x
    } else {
        1.0 + x * 0.5
    }
}

/// ln(1 + x) / x, also near 0.
fn ln1p_over(x: f64) -> f64 {
    if x.abs() > 1e-8 {
        x.ln_1p() / x
    } else {
        1.0 - x * 0.5
    }
}

impl Zipf {
    /// `n` is at least 1 and `exponent` at least 0.
    pub fn new(n: u64, exponent: f64) -> Self {
        let mut zipf = Self { n, exponent, integral_first: 0.0, integral_last: 0.0, accept_width: 0.0 };
        zipf.integral_first = zipf.integral(1.5) - 1.0;
        zipf.integral_last = zipf.integral(n as f64 + 0.5);
        zipf.accept_width = 2.0 - zipf.integral_inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    fn density(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        expm1_over((1.0 - self.exponent) * log) * log
    }

    fn integral_inverse(&self, y: f64) -> f64 {
        let t = (y * (1.0 - self.exponent)).max(-1.0);
        (ln1p_over(t) * y).exp()
    }

    pub fn sample(&self, rng: &mut Rng) -> u64 {
        if self.exponent == 0.0 || self.n == 1 {
            return rng.below(self.n);
        }
        loop {
            let u = self.integral_last + rng.uniform() * (self.integral_first - self.integral_last);
            let x = self.integral_inverse(u);
            let k = x.round().clamp(1.0, self.n as f64);
            if k - x <= self.accept_width || u >= self.integral(k + 0.5) - self.density(k) {
                return k as u64 - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For several exponents, observed shares of the first ranks agree with the definition within five standard errors.
    #[test]
    fn shares_follow_the_definition() {
        for exponent in [0.0, 0.5, 0.99, 1.0, 1.5] {
            let n = 1000u64;
            let zipf = Zipf::new(n, exponent);
            let mut rng = Rng::new(11, 3);
            let draws = 200_000;
            let mut seen = vec![0u32; n as usize];
            for _ in 0..draws {
                seen[zipf.sample(&mut rng) as usize] += 1;
            }
            let norm: f64 = (1..=n).map(|k| (k as f64).powf(-exponent)).sum();
            for rank in [0usize, 1, 2, 9, 99, 999] {
                let p = ((rank + 1) as f64).powf(-exponent) / norm;
                let share = f64::from(seen[rank]) / f64::from(draws);
                let error = (p * (1.0 - p) / f64::from(draws)).sqrt();
                assert!(
                    (share - p).abs() < 5.0 * error + 1e-5,
                    "exponent {exponent} rank {rank}: {share} {p}"
                );
            }
        }
    }

    /// A population of one always gives rank 0.
    #[test]
    fn single_rank() {
        let mut rng = Rng::new(1, 1);
        assert!((0..100).all(|_| Zipf::new(1, 0.99).sample(&mut rng) == 0));
    }
}
