//! A token bucket (GCRA) in one number.

use crate::time::Mono;

/// The theoretical arrival time of the generic cell rate algorithm, µs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bucket {
    tat: u64,
}

impl Bucket {
    /// Takes one of `rate` per second, `burst` at once; otherwise how long to wait, ms (rounded up).
    pub fn take(&mut self, now: Mono, rate_per_s: u32, burst: u32) -> Result<(), u32> {
        let each = 1_000_000 / u64::from(rate_per_s.max(1));
        let allowed = each * u64::from(burst.max(1) - 1);
        let tat = self.tat.max(now.0);
        if tat > now.0 + allowed {
            return Err(u32::try_from((tat - now.0 - allowed).div_ceil(1000)).unwrap_or(u32::MAX));
        }
        self.tat = tat + each;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_then_rate_and_never_twice_the_burst() {
        let mut b = Bucket::default();
        let now = Mono(5_000_000);
        let admitted = (0..100).filter(|_| b.take(now, 5, 10).is_ok()).count();
        assert_eq!(admitted, 10);
        assert_eq!(b.take(now, 5, 10), Err(200));
        assert_eq!(b.take(Mono(now.0 + 200_000), 5, 10), Ok(()));
        assert_eq!(b.take(Mono(now.0 + 200_001), 5, 10), Err(200));
    }
}
