//! The clients of the gateway that is killed. They attach to nothing: a storm is about getting in, and what owners do
//! with attaches is `gateway-crash`'s subject.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::client::conn::{Client, Live, Phase};
use crate::client::dial::Dial;
use crate::client::policy::Crowd;
use crate::clock::{instant, now_us};
use crate::journal::Line;

/// Dials at once. More than this only wait for the two cores that also run the gateways.
pub const DIALS: usize = 512;
/// Beyond the time that arithmetic says.
const GRACE: Duration = Duration::from_secs(60);

/// Clients under way.
pub struct Herd {
    pub live: Arc<Live>,
    size: u64,
    phase: watch::Sender<Phase>,
    clients: JoinSet<Vec<Line>>,
}

impl Herd {
    /// Connects `size` clients to the first gateway, at `per_s`.
    pub async fn gather(
        size: u64,
        per_s: u64,
        crowd: Crowd,
        dial: &Dial,
        token: impl Fn(&str) -> anyhow::Result<String>,
    ) -> anyhow::Result<Self> {
        let (phase, heard) = watch::channel(Phase::Setup);
        let mut herd = Herd { live: Arc::new(Live::default()), size, phase, clients: JoinSet::new() };
        let began = now_us();
        for index in 0..size {
            tokio::time::sleep_until(instant(began + index * 1_000_000 / per_s.max(1))).await;
            let sub: Arc<str> = name(index);
            let index = usize::try_from(index)?;
            let mut client = Client::idle(index, sub.clone(), token(&sub)?, dial.clone(), herd.live.clone());
            (client.first, client.policy) = (0, crowd.of(index));
            herd.clients.spawn(client.run(heard.clone()));
        }
        herd.welcomed(size, GRACE).await.context("not everybody got in before the storm")?;
        println!("{size} clients connected in {} ms", (now_us() - began) / 1_000);
        Ok(herd)
    }

    /// Welcomes so far.
    pub fn welcomes(&self) -> u64 {
        self.live.welcomes.load(Relaxed)
    }

    /// Waits until there were so many welcomes and everybody is in.
    async fn welcomed(&self, welcomes: u64, at_most: Duration) -> anyhow::Result<()> {
        let all = || self.welcomes() >= welcomes && self.live.welcomed.load(Relaxed) >= self.size.cast_signed();
        let waiting = async {
            while !all() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(at_most, waiting).await.map_err(|_| {
            let (inside, stopped) = (self.live.welcomed.load(Relaxed), self.live.stopped.load(Relaxed));
            let failed = self.live.failed_dials.load(Relaxed);
            anyhow::anyhow!("{inside} of {} inside, {failed} attempts failed, {stopped} sent away", self.size)
        })
    }

    /// Waits until all are back since there were `before` welcomes; tells if they are not in time.
    pub async fn back(&self, before: u64, ideal: Duration) {
        if let Err(error) = self.welcomed(before + self.size, 10 * ideal + GRACE).await {
            println!("not all came back: {error}");
        }
    }

    /// Everybody hangs up; returns the journals.
    pub async fn disperse(mut self) -> anyhow::Result<Vec<Line>> {
        self.phase.send_replace(Phase::Stop);
        let mut lines = Vec::new();
        while let Some(done) = self.clients.join_next().await {
            lines.extend(done?);
        }
        Ok(lines)
    }
}

/// Name of the n-th client.
pub fn name(index: u64) -> Arc<str> {
    Arc::from(format!("h{index}"))
}

/// Which client that is.
pub fn index(name: &str) -> Option<usize> {
    name.strip_prefix('h')?.parse().ok()
}
