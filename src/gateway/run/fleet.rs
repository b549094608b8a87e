//! The rest of the fleet as one gateway sees it: owners, other gateways, and what its own death would mean.

use std::sync::Arc;

use holdfast_core::{
    id::Boot,
    time::{Mono, Wall},
};

use super::{GatewayHandle, spread_ms};

/// An owner: registered in the directory, linked to this gateway, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerView {
    /// Its name.
    pub node: Arc<str>,
    /// Which life of it.
    pub boot: Boot,
    /// `up`, `down` (wanted, not there), `unused` (no session here needs it) or `gone` (no longer in the directory).
    pub link: &'static str,
    /// Since when the link is up or down; 0 = there is none.
    pub since: Wall,
    /// Sessions of this gateway that are bound to it.
    pub sessions: usize,
    /// It said that it is draining.
    pub draining: bool,
}

/// What another gateway last said of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayView {
    /// Its name.
    pub node: Arc<str>,
    /// Its clients.
    pub connections: u32,
    /// What it admits per second.
    pub admit_per_s: u32,
    /// It takes nobody any more.
    pub draining: bool,
}

/// What happens if this gateway dies now (design 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Its clients.
    pub clients: u64,
    /// Gateways that take them.
    pub others: usize,
    /// What those admit per second, together.
    pub admit_per_s: u64,
    /// Until all clients are back, in milliseconds; 0 = there is nobody to go to.
    pub back_ms: u64,
}

impl GatewayHandle {
    /// The owners, by name.
    #[must_use]
    pub fn owners(&self) -> Vec<OwnerView> {
        let mut links = self.pool.links();
        let mut all = Vec::new();
        let mut view = |node, boot: Boot, link, since, draining| {
            all.push(OwnerView { node, boot, link, since, sessions: self.sessions.bound_to(boot), draining });
        };
        for (node, info) in self.watcher.nodes() {
            let boot = Boot(info.boot);
            let linked = links.iter().position(|l| l.boot == boot).map(|at| links.swap_remove(at));
            let (link, since) = linked.map_or(("unused", Wall(0)), |l| (if l.up { "up" } else { "down" }, l.since));
            view(node, boot, link, since, info.draining);
        }
        for link in links {
            view(link.node, link.boot, "gone", link.since, false);
        }
        all.sort_by(|a, b| (&a.node, a.boot.0).cmp(&(&b.node, b.boot.0)));
        all
    }

    /// The other gateways, by name.
    #[must_use]
    pub fn gateways(&self) -> Vec<GatewayView> {
        let own = self.clock.boot().0;
        let others = self.watcher.gateways().into_iter().filter(|(_, g)| g.boot != own);
        let mut all: Vec<_> = others
            .map(|(node, g)| GatewayView {
                node,
                connections: g.connections,
                admit_per_s: g.admit_per_s,
                draining: g.draining,
            })
            .collect();
        all.sort_by(|a, b| a.node.cmp(&b.node));
        all
    }

    /// What happens if this gateway dies now.
    #[must_use]
    pub fn forecast(&self) -> Forecast {
        forecast(self.metrics.connections(), &self.gateways())
    }

    /// Time since the process started.
    #[must_use]
    pub fn uptime(&self) -> std::time::Duration {
        self.clock.now().mono.since(Mono(0))
    }
}

fn forecast(clients: u64, gateways: &[GatewayView]) -> Forecast {
    let takers = || gateways.iter().filter(|g| !g.draining);
    let admit_per_s = takers().map(|g| u64::from(g.admit_per_s)).sum();
    Forecast { clients, others: takers().count(), admit_per_s, back_ms: spread_ms(clients, admit_per_s) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forecast_counts_on_those_that_take_clients() {
        let gateway = |node: &str, admit_per_s, draining| GatewayView {
            node: node.into(),
            connections: 5,
            admit_per_s,
            draining,
        };
        let fleet = [gateway("a", 1_000, false), gateway("b", 1_000, false), gateway("c", 9_000, true)];
        let expected = Forecast { clients: 6_000, others: 2, admit_per_s: 2_000, back_ms: 3_150 };
        assert_eq!(forecast(6_000, &fleet), expected);
        assert_eq!(forecast(6_000, &[]), Forecast { clients: 6_000, others: 0, admit_per_s: 0, back_ms: 0 });
    }
}
