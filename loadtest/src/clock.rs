//! One clock for the whole run: Unix microseconds, anchored once on the monotonic clock so that it never steps.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

static ANCHOR: OnceLock<(u64, Instant)> = OnceLock::new();

fn anchor() -> (u64, Instant) {
    *ANCHOR.get_or_init(|| {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (u64::try_from(wall.as_micros()).unwrap_or(0), Instant::now())
    })
}

/// Now, in Unix microseconds.
pub fn now_us() -> u64 {
    let (wall, at) = anchor();
    wall + u64::try_from(at.elapsed().as_micros()).unwrap_or(0)
}

/// The instant of a time of `now_us`; an hour away at most.
pub fn instant(at_us: u64) -> tokio::time::Instant {
    let ahead = at_us.saturating_sub(now_us()).min(3_600_000_000);
    tokio::time::Instant::now() + Duration::from_micros(ahead)
}
