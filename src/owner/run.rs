//! The life of an owner process: register, follow the directory, serve, drain.

use std::{
    future::Future,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::Context;
use holdfast_core::{
    id::Boot,
    proto::{NodeInfo, owner_msg},
};
use tokio::{
    net::TcpListener,
    sync::{Notify, mpsc, watch},
    task::JoinSet,
    time::Instant,
};
use tonic::transport::{Server, server::TcpIncoming};

use super::{
    OwnerConfig,
    service::{RECEIVE_MAX, Service},
    sessions::{Counters, Jobs, Sessions},
    store::Store,
    work,
};
use crate::{
    clock::Clock,
    placement::{
        client::PlacementClient,
        lease::{Held, NodeLease},
        watch::{Change, Watcher},
    },
    upstream::rpc::owner_server::OwnerServer,
};

/// HTTP/2 windows (measured, design 17).
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// A peer that acknowledges nothing for 5 + 5 s is gone with its connection.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// A drain that places no session for this long has nobody to place them: the end of the lease tells placement.
const DRAIN_STALL: Duration = Duration::from_secs(3);
/// How often a drain looks whether it is done.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// Runs an owner until `shutdown` is ready, then drains it and returns.
///
/// # Errors
/// It cannot listen, or its server ended by itself.
pub async fn run(config: OwnerConfig, shutdown: impl Future<Output = ()> + Send) -> anyhow::Result<()> {
    run_with(config, Arc::new(Counters::default()), shutdown).await
}

/// As [`run`], counting into `counters`.
///
/// # Errors
/// As [`run`].
pub async fn run_with(
    config: OwnerConfig,
    counters: Arc<Counters>,
    shutdown: impl Future<Output = ()> + Send,
) -> anyhow::Result<()> {
    let listener = TcpListener::bind(&config.listen).await.with_context(|| format!("listen on {}", config.listen))?;
    let addr = match config.advertise.as_str() {
        "" => listener.local_addr()?.to_string(),
        given => given.to_owned(),
    };
    let clock = Clock::start();
    let boot = clock.boot();
    // one request at a time per session; twice, because a session may be replaced while its request is under way
    let (urgent, urgent_queue) = mpsc::channel(config.cap as usize * 2 + 1_024);
    let (first, first_queue) = mpsc::channel(config.cap as usize * 2 + 1_024);
    let jobs = Jobs { urgent, first };
    let (notices, notice_queue) = mpsc::channel(config.cap as usize * 2 + 1_024);
    let sessions = Arc::new(Sessions::new(clock.clone(), config.authority(boot, &addr), jobs, notices, counters));
    let drain = Arc::new(Notify::new());
    let lease = NodeLease::spawn(config.directory.clone(), &config.node, boot, info(&config, &addr));
    let watcher = follow(&config, &sessions, &drain);
    let store = Store::new(config.store.clone(), config.store_timeout);

    let placement =
        PlacementClient::new(config.placement.clone(), Some(config.directory.clone())).secured(&config.link);
    // aborted when it is dropped: nothing outlives this function
    let mut tasks = JoinSet::new();
    let (stop, stopped) = watch::channel(false);
    tasks.spawn(serve(listener, Service::new(sessions.clone(), config.link.clone()), config.link.server()?, stopped));
    tasks.spawn(ok(work::store((urgent_queue, first_queue), sessions.clone(), store.clone())));
    tasks.spawn(ok(work::probe(sessions.clone(), store)));
    tasks.spawn(ok(work::notices(notice_queue, sessions.clone(), placement)));
    tasks.spawn(ok(wake(sessions.clone(), clock)));
    let waiting = sessions.clone();
    tasks.spawn(async move { ok(waiting.end_waits()).await });
    tasks.spawn(ok(follow_lease(lease.state(), watcher.clone(), sessions.clone(), config.clone(), addr.clone())));
    tracing::info!(node = config.node, %boot, addr, "owner up");

    tokio::select! {
        () = shutdown => {}
        () = drain.notified() => tracing::info!("drained by placement"),
        Some(ended) = tasks.join_next() => ended.context("an owner's task")??,
    }
    lease.update(|i| i.draining = true);
    drain_all(&config, &sessions).await;
    lease.close().await;
    let _gone = stop.send(true);
    sessions.close_links();
    Ok(())
}

fn info(config: &OwnerConfig, addr: &str) -> NodeInfo {
    NodeInfo {
        addr: addr.to_owned(),
        kinds: config.kinds.clone(),
        cap: config.cap,
        zone: config.zone.clone(),
        build: env!("CARGO_PKG_VERSION").to_owned(),
        ..NodeInfo::default()
    }
}

async fn ok(task: impl Future<Output = ()>) -> anyhow::Result<()> {
    task.await;
    Ok(())
}

async fn wake(sessions: Arc<Sessions>, clock: Clock) {
    sessions.timers.run(&clock, |session| sessions.wake(&session)).await;
}

async fn serve(
    listener: TcpListener,
    service: Service,
    server: Server,
    mut stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let service = OwnerServer::new(service).max_decoding_message_size(RECEIVE_MAX).max_encoding_message_size(16 << 20);
    // the builder's own tcp_nodelay is ignored for sockets it did not accept; without it echoes wait for delayed ACKs
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    server
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .add_service(service)
        .serve_with_incoming_shutdown(incoming, async move {
            let _closed = stop.wait_for(|s| *s).await;
        })
        .await
        .context("the owner's server")
}

/// Sessions follow the directory.
fn follow(config: &OwnerConfig, sessions: &Arc<Sessions>, drain: &Arc<Notify>) -> Watcher {
    let (told, drain, node) = (Arc::downgrade(sessions), drain.clone(), config.node.clone());
    let watcher = Watcher::spawn(
        config.directory.clone(),
        Arc::new(move |change| {
            let Some(sessions) = told.upgrade() else { return };
            match change {
                Change::Route(session, route) => sessions.route(&session, &route),
                Change::Node(name, info)
                    if *name == *node && info.draining && info.boot == sessions.config().boot.0 =>
                {
                    drain.notify_one();
                }
                _ => {}
            }
        }),
    );
    let _first = sessions.watcher.set(watcher.clone());
    watcher
}

/// Past its lease an owner answers no reads (duty 5); a lease that is gone begins another life.
async fn follow_lease(
    mut state: watch::Receiver<Held>,
    watcher: Watcher,
    sessions: Arc<Sessions>,
    config: OwnerConfig,
    addr: String,
) {
    loop {
        let now = *state.borrow_and_update();
        if now.boot != Boot(0) && now.boot != sessions.config().boot {
            tracing::warn!(boot = %now.boot, "the lease was lost: another life");
            sessions.begin_life(config.authority(now.boot, &addr));
            for (session, route) in watcher.owned_by(now.boot) {
                sessions.route(&session, &route);
            }
        }
        // in a directory outage it knows of, only documents stop (design 6.8); before the first lease nothing is owned
        let outage = !watcher.state().synced();
        let was = sessions.lease.swap(now.held || now.lease == 0, Ordering::AcqRel);
        let held = sessions.lease.load(Ordering::Acquire);
        if was != held {
            tracing::warn!(held, outage, "lease");
            for slot in sessions.all() {
                sessions.drive(&slot, |core, now, out| core.handle_lease_in(now, held, outage, out));
            }
        }
        if state.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Hands every session over, paced; returns when all are placed elsewhere, or it has taken too long (design 7.3).
async fn drain_all(config: &OwnerConfig, sessions: &Sessions) {
    let begun = Instant::now();
    let by_us = sessions.clock.now().wall.after(config.drain_max).0;
    sessions.broadcast(&owner_msg::M::Draining(owner_msg::Draining { by_us, sessions: vec![] }));
    let per_look = (u64::from(config.drain_per_s) * DRAIN_LOOK.as_millis() as u64 / 1000).max(1) as usize;
    let slots = sessions.all();
    let count = slots.len();
    for some in slots.chunks(per_look) {
        for slot in some {
            sessions.drive(slot, |core, now, out| core.handle_drain(now, out));
        }
        tokio::time::sleep(DRAIN_LOOK).await;
    }
    let (mut left, mut since) = (sessions.len(), Instant::now());
    while left > 0 && begun.elapsed() < config.drain_max && since.elapsed() < DRAIN_STALL {
        tokio::time::sleep(DRAIN_LOOK).await;
        if sessions.len() < left {
            (left, since) = (sessions.len(), Instant::now());
        }
    }
    tracing::info!(sessions = count, left = sessions.len(), ms = begun.elapsed().as_millis(), "drained");
}
