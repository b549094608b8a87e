//! The load itself: sessions made, clients attached, ops at their intended times, and the wait until all have settled.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Context as _;
use indicatif::ProgressBar;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{FAULT_AFTER_US, Shape, kind_of};
use crate::args::Run;
use crate::client::conn::{Client, Live, Phase, Placed};
use crate::client::dial::Dial;
use crate::client::seat::Seat;
use crate::client::traffic::{Kind, Plan, games};
use crate::clock::{instant, now_us};
use crate::journal::Line;
use crate::local::config::Signer;
use crate::local::{Cluster, placement};

/// Dials at once: more only queue in the client's own two cores.
const DIALS: usize = 128;
const ATTACH: Duration = Duration::from_secs(180);
/// Beyond the longest hold TTL (25 s) nothing can still be open.
const SETTLE: Duration = Duration::from_secs(45);

/// Load under way.
pub struct Load {
    pub directory: placement::Directory,
    pub live: Arc<Live>,
    pub start_us: u64,
    pub until_us: u64,
    pub seats: i64,
    phase: watch::Sender<Phase>,
    clients: JoinSet<Vec<Line>>,
}

impl Load {
    /// Creates the sessions and attaches every client.
    pub async fn prepare(run: &Run, shape: &Shape, cluster: &Cluster) -> anyhow::Result<Self> {
        Self::prepare_at(run, shape, cluster, cluster.gateway_addrs()).await
    }

    /// The same over some of the gateways.
    pub async fn prepare_at(run: &Run, shape: &Shape, cluster: &Cluster, at: Vec<SocketAddr>) -> anyhow::Result<Self> {
        let dial = Dial::new(at, cluster.tls.clone(), DIALS);
        let directory = placement::Directory::watch(&cluster.directory_url);
        let began = now_us();
        let named: Vec<(String, Kind)> =
            (0..shape.sessions).map(|i| (format!("lt-{}-{i}", run.seed), kind_of(shape, run.per_conn(), i))).collect();
        let wanted = named.iter().map(|(id, kind)| (id.clone(), kind.word())).collect();
        placement::create(&cluster.placement_url(), wanted).await?;
        println!("{} sessions created in {} ms", shape.sessions, (now_us() - began) / 1_000);
        let (phase, heard) = watch::channel(Phase::Setup);
        let live = Arc::new(Live::default());
        let mut load = Load {
            directory,
            live: live.clone(),
            start_us: 0,
            until_us: 0,
            seats: 2 * shape.sessions as i64,
            phase,
            clients: JoinSet::new(),
        };
        for client in clients((run, shape), &cluster.signer, &dial, &named, &live)? {
            load.clients.spawn(client.run(heard.clone()));
        }
        load.attached().await?;
        Ok(load)
    }

    async fn attached(&self) -> anyhow::Result<()> {
        let began = now_us();
        let bar = bar(self.seats as u64, "attached");
        let waiting = async {
            while self.live.attached.load(Relaxed) < self.seats {
                bar.set_position(self.live.attached.load(Relaxed).max(0) as u64);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let done = tokio::time::timeout(ATTACH, waiting).await;
        bar.finish_and_clear();
        let live = &self.live;
        let (attached, connected) = (live.attached.load(Relaxed), live.connected.load(Relaxed));
        done.with_context(|| {
            let (failed, errors) = (live.failed_dials.load(Relaxed), live.errors.load(Relaxed));
            format!(
                "{attached} of {} attached, {connected} connected, {failed} dials failed, {errors} error frames",
                self.seats
            )
        })?;
        println!("{attached} seats attached over {connected} connections in {} ms", (now_us() - began) / 1_000);
        Ok(())
    }

    /// Ops are due from now on.
    pub fn start(&mut self, duration_s: u64) {
        self.start_us = now_us() + 500_000;
        self.until_us = self.start_us + duration_s * 1_000_000;
        self.phase.send_replace(Phase::Run { start_us: self.start_us, until_us: self.until_us });
        println!("load for {duration_s} s");
    }

    /// No op is due any more.
    pub fn end_now(&mut self) {
        self.until_us = now_us();
        self.phase.send_replace(Phase::Run { start_us: self.start_us, until_us: self.until_us });
    }

    /// Sends the next op of these sessions at once, whose turn it may be.
    pub fn park(&self, sessions: &[Arc<str>]) {
        let _first = self.live.parked.set(sessions.iter().cloned().collect());
        // the same once more: the clients look
        self.phase.send_replace(Phase::Run { start_us: self.start_us, until_us: self.until_us });
    }

    /// Waits for the moment of the fault.
    pub async fn fault_time(&self) {
        tokio::time::sleep_until(instant(self.start_us + FAULT_AFTER_US)).await;
    }

    /// Waits for the end of the load and until every op has settled; returns the journals.
    pub async fn finish(&mut self) -> anyhow::Result<Vec<Line>> {
        let bar = bar((self.until_us - self.start_us) / 1_000, "ms of load");
        while now_us() < self.until_us {
            bar.set_position(now_us().saturating_sub(self.start_us) / 1_000);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bar.finish_and_clear();
        let mut quiet = 0;
        let settle = async {
            while quiet < 5 {
                quiet = if self.live.open_ops.load(Relaxed) == 0 { quiet + 1 } else { 0 };
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        if tokio::time::timeout(SETTLE, settle).await.is_err() {
            println!("{} seats still have open ops", self.live.open_ops.load(Relaxed));
        }
        self.phase.send_replace(Phase::Stop);
        let mut lines = Vec::new();
        while let Some(done) = self.clients.join_next().await {
            lines.extend(done?);
        }
        println!("{} frames of ops sent, {} lines of journal", self.live.ops.load(Relaxed), lines.len());
        Ok(lines)
    }

    /// The owner with most sessions, as index and sessions.
    pub fn victim(&self) -> anyhow::Result<(usize, Vec<Arc<str>>)> {
        self.victim_among(|_| true)
    }

    /// As [`Load::victim`], of the owners that `may`.
    pub fn victim_among(&self, may: impl Fn(&str) -> bool) -> anyhow::Result<(usize, Vec<Arc<str>>)> {
        let owners = self.directory.owners();
        let most = owners
            .into_iter()
            .filter(|(node, _)| !node.is_empty() && may(node))
            .max_by_key(|(node, s)| (s.len(), node.clone()));
        let (node, sessions) = most.context("no owner has a session")?;
        let index = node.strip_prefix("owner-").and_then(|n| n.parse().ok()).context("an owner of another name")?;
        println!("victim {node} with {} of {} sessions", sessions.len(), self.directory.len());
        Ok((index, sessions))
    }
}

/// Two clients for each group of sessions, one a seat. Session s has an op due each sessions / ops_per_s, the seats in turn.
fn clients(
    of: (&Run, &Shape),
    signer: &Signer,
    dial: &Dial,
    named: &[(String, Kind)],
    live: &Arc<Live>,
) -> anyhow::Result<Vec<Client>> {
    let (run, shape) = of;
    let total = named.len() as u64;
    let period_us = total * 1_000_000 / run.ops_per_s;
    let plies = (shape.duration_s * 1_000_000 / period_us.max(1)) as usize;
    let games = games(plies);
    let mut order: Vec<u64> = (0..total).collect();
    order.shuffle(&mut SmallRng::seed_from_u64(run.seed));
    let groups = named.chunks(run.per_conn());
    let count = groups.len() as u64 * 2;
    let reaction_every_us = (count * 1_000_000).checked_div(shape.reactions_per_s).unwrap_or(0);
    let mut clients = Vec::new();
    for (g, group) in groups.enumerate() {
        for parity in 0..2 {
            let index = g * 2 + parity;
            let sub: Arc<str> = Arc::from(format!("u{g}-{parity}"));
            let kind = group.last().map_or(shape.kinds[0], |(_, k)| *k);
            let seats = group.iter().enumerate().map(|(k, (id, kind))| {
                let s = g * run.per_conn() + k;
                let plan = Plan::new(*kind, parity, &games[s % games.len()], run.seed ^ (2 * s + parity) as u64);
                let offset_us = order[s] * 1_000_000 / run.ops_per_s + parity as u64 * period_us;
                Placed { seat: Seat::new(Arc::from(id.as_str()), plan), offset_us, every_us: 2 * period_us }
            });
            let token = signer.token(&sub, kind.seat(parity))?;
            let mut client = Client::idle(index, sub, token, dial.clone(), live.clone());
            client.policy = run.policy.of(index);
            client.seats = seats.collect();
            client.reaction_every_us = reaction_every_us;
            clients.push(client);
        }
    }
    Ok(clients)
}

fn bar(len: u64, what: &'static str) -> ProgressBar {
    if !std::io::stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = indicatif::ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}");
    ProgressBar::new(len)
        .with_style(style.unwrap_or_else(|_| indicatif::ProgressStyle::default_bar()))
        .with_message(what)
}
