//! How long to wait before the next try.

use std::time::Duration;

/// Decorrelated jitter: `min(cap, U(base, 3 x previous))` (design 4.4). The random draw is an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    previous: Duration,
}

impl Backoff {
    /// Waits between `base` and `cap`.
    #[must_use]
    pub const fn new(base: Duration, cap: Duration) -> Self {
        Self { base, cap, previous: base }
    }

    /// The next wait; `draw` is uniform in `[0, 1)`.
    pub fn next(&mut self, draw: f64) -> Duration {
        let top = self.previous.saturating_mul(3).max(self.base);
        let span = top.saturating_sub(self.base);
        let wait = self.base.saturating_add(span.mul_f64(draw.clamp(0.0, 1.0))).min(self.cap);
        self.previous = wait;
        wait
    }

    /// It worked: start from `base` again.
    pub const fn reset(&mut self) {
        self.previous = self.base;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_threefold_at_most_and_stops_at_the_cap() {
        let ms = Duration::from_millis;
        let mut b = Backoff::new(ms(250), ms(8000));
        assert_eq!(b.next(0.5), ms(500));
        assert_eq!(b.next(1.0), ms(1500));
        assert_eq!(b.next(0.0), ms(250));
        assert_eq!(b.next(1.0), ms(750));
        assert_eq!(b.next(1.0), ms(2250));
        assert_eq!(b.next(1.0), ms(6750));
        assert_eq!(b.next(1.0), ms(8000));
        b.reset();
        assert_eq!(b.next(1.0), ms(750));
    }
}
