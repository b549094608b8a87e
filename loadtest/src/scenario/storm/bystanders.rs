//! Those who are connected to the survivors all along: what they notice of a storm.

use crate::args::{Run, Switch, Transport};
use crate::client::policy::{Crowd, Policy};
use crate::client::traffic::Kind;
use crate::local::metrics::Buckets;
use crate::local::{Cluster, http};
use crate::scenario::Shape;
use crate::scenario::load::Load;

use super::args::Storm;

/// Meetings on one connection.
const SESSIONS_PER_CONN: u16 = 4;

/// Attaches them, to all gateways but the first.
pub async fn attach(storm: &Storm, cluster: &Cluster, duration_s: u64) -> anyhow::Result<Load> {
    let run = Run {
        local: true,
        gateways: Some(storm.gateways),
        owners: None,
        victim_sessions: None,
        held: None,
        kill_owner: false,
        sessions: None,
        sessions_per_conn: Some(SESSIONS_PER_CONN),
        admit_per_s: None,
        ops_per_s: storm.ops_per_s,
        reactions_per_s: None,
        lease: None,
        fast_path: Switch::On,
        transport: Transport::Ws,
        policy: Crowd { polite: Policy::Ranks, hammer_percent: 0 },
        seed: storm.seed,
        duration: None,
        cap: 10_000,
        idle: 0,
        report: None,
    };
    let shape = Shape {
        name: "storm",
        kinds: vec![Kind::Meeting],
        owners: cluster.spec.owners,
        sessions: usize::try_from(storm.sessions)?,
        reactions_per_s: storm.ops_per_s,
        duration_s,
    };
    Load::prepare_at(&run, &shape, cluster, cluster.gateway_addrs().split_off(1)).await
}

/// The survivors' own times so far, up and down.
pub struct Times([Buckets; 2]);

impl Times {
    pub async fn read(cluster: &Cluster) -> Self {
        let mut texts = Vec::new();
        for gateway in cluster.gateways.iter().skip(1) {
            texts.extend(http::get(&gateway.admin(), "/metrics").await.map(|(_, text)| text));
        }
        Times(["holdfast_gateway_up_seconds", "holdfast_gateway_down_seconds"].map(|n| Buckets::read(&texts, n)))
    }

    /// p99 up + p99 down of what came since, µs; `None` if nothing came one way.
    pub fn p99_us(self, before: &Times) -> Option<f64> {
        let [up, down] = self.0;
        let p99 = |now: Buckets, then| now.since(then).quantile(0.99).map(|s| s * 1e6);
        Some(p99(up, &before.0[0])? + p99(down, &before.0[1])?)
    }
}
