//! `holdfast gateway`, `holdfast placement`, `holdfast owner`: configuration to a running part.

use std::{
    future::Future,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    task::JoinHandle,
    time::sleep,
};

use super::startup::{self, Shutdown, until_signal};
use crate::{
    admin::{self, Member, Source},
    config::{self, StoreKind},
    gateway::{run as gateway_run, run::GatewayHandle},
    owner::{self, Counters},
    placement,
    placement::{
        keys,
        kv::{Kv, etcd::Options},
    },
};

/// What is logged unless `HOLDFAST_LOG` says otherwise.
const LOGS: &str = "info,h2=warn,hyper=warn,tonic=warn";
/// How often a process that is not ready looks whether it is, and says that it still tries (each [`SAY_LOOKS`]).
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often a process that is ready looks whether it still is.
const RECHECK_EVERY: Duration = Duration::from_secs(1);
/// Looks between two lines that say so: 5 s.
const SAY_LOOKS: u32 = 20;

pub(super) fn gateway(file: Option<&Path>) -> anyhow::Result<()> {
    let config: config::Gateway = config::load(file)?;
    let (run, listeners) = (config.run_config()?, config.listeners()?);
    let file = file.map(Path::to_owned);
    block_on(true, async move |shutdown| {
        let etcd = config.directory.endpoints.join(", ");
        let directory = Kv::etcd(config.directory.endpoints, Options::default());
        let admin = Admin::bind(&config.admin).await?;
        let (started, handle) = oneshot::channel();
        let name = run.id.clone();
        let serving = gateway_run::run(run, listeners, directory, shutdown.clone().wait(), |handle| {
            // Nobody waits for it when there is no admin server.
            let _ = started.send(handle);
        });
        let told = async {
            if let Ok(handle) = handle.await {
                tracing::info!(gateway = name, listen = config.listen, admin = config.admin, "listening");
                let source = Arc::new(handle.clone());
                let (hurried, reloaded) = (shutdown.clone(), handle.clone());
                tokio::spawn(async move {
                    hurried.hurried().await;
                    handle.hurry();
                });
                tokio::spawn(reload_on_hangup(file, reloaded));
                let _serving = admin.serve(source.clone());
                wait_ready("gateway", &etcd, || std::future::ready(source.not_ready())).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = serving => ended,
            () = told => Ok(()),
        }
    })
}

/// SIGHUP: the limits of the file, as it is then, hold from there on. A file with a mistake changes nothing. What is not a
/// limit holds from the next start on (TLS certificates are read again as they change).
async fn reload_on_hangup(file: Option<PathBuf>, handle: GatewayHandle) {
    let Ok(mut hangup) = signal(SignalKind::hangup()) else {
        tracing::error!("SIGHUP cannot be waited for: limits change through the admin server only");
        return;
    };
    while hangup.recv().await.is_some() {
        let read = config::load::<config::Gateway>(file.as_deref());
        match read.and_then(|config| Ok(config.live_limits().settings()?)) {
            Ok(settings) => {
                handle.set(settings);
                tracing::info!("SIGHUP: the limits of the file hold now");
            }
            Err(e) => tracing::error!("SIGHUP: the limits stay as they were: {e}"),
        }
    }
}

pub(super) fn placement(file: Option<&Path>) -> anyhow::Result<()> {
    let config: config::Placement = config::load(file)?;
    block_on(false, async move |shutdown| {
        let etcd = config.directory.endpoints.join(", ");
        let directory = Kv::etcd(config.directory.endpoints.clone(), Options::default());
        let admin = Admin::bind(&config.admin).await?;
        let registered =
            Registered { role: "placement", node: &config.node, etcd: &etcd, key: keys::LEADER.into(), counters: None };
        let watching = registered.watch(&directory, admin);
        tokio::select! {
            ended = placement::run(config.run_config()?, directory.clone(), shutdown.wait()) => ended,
            () = watching => Ok(()),
        }
    })
}

pub(super) fn owner(file: Option<&Path>) -> anyhow::Result<()> {
    let config: config::Owner = config::load(file)?;
    block_on(false, async move |shutdown| {
        let etcd = config.directory.endpoints.join(", ");
        let directory = Kv::etcd(config.directory.endpoints.clone(), Options::default());
        let store = match config.store.kind {
            StoreKind::Etcd => Kv::etcd(config.store.endpoints.clone(), Options::default()),
            StoreKind::Memory => Kv::memory(),
        };
        let admin = Admin::bind(&config.admin).await?;
        let counters = Arc::new(Counters::default());
        let registered = Registered {
            role: "owner",
            node: &config.node,
            etcd: &etcd,
            key: keys::node(&config.node),
            counters: Some(counters.clone()),
        };
        let watching = registered.watch(&directory, admin);
        tokio::select! {
            ended = owner::run_with(config.run_config(directory.clone(), store)?, counters, shutdown.wait()) => ended,
            () = watching => Ok(()),
        }
    })
}

/// `hurries`: a second signal only hurries it, a third ends it.
fn block_on<F>(hurries: bool, part: impl FnOnce(Shutdown) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    startup::logs(false, LOGS)?;
    let runtime = startup::runtime()?;
    let outcome = runtime.block_on(until_signal(hurries, part));
    // What is still running has had its graceful stop.
    runtime.shutdown_background();
    outcome
}

/// An admin server that listens already, so that a port in use is seen before anything starts; none if it is off.
struct Admin(Option<tokio::net::TcpListener>);

impl Admin {
    async fn bind(addr: &str) -> anyhow::Result<Self> {
        Ok(Self(if addr.is_empty() { None } else { Some(admin::bind(addr).await?) }))
    }

    fn serve(self, source: Arc<dyn Source>) -> Option<JoinHandle<()>> {
        self.0.map(|listener| tokio::spawn(admin::serve(listener, source, std::future::pending())))
    }
}

/// A process whose readiness is a key in the directory: its registration, or the leader's.
struct Registered<'a> {
    role: &'static str,
    node: &'a str,
    /// The directory's endpoints, for messages.
    etcd: &'a str,
    key: Vec<u8>,
    counters: Option<Arc<Counters>>,
}

impl Registered<'_> {
    /// Serves the admin requests and keeps readiness true. Never ends.
    async fn watch(self, directory: &Kv, admin: Admin) {
        let source = Arc::new(Member {
            role: self.role,
            node: self.node.into(),
            reasons: vec!["starting".to_owned()].into(),
            counters: self.counters,
        });
        let _serving = admin.serve(source.clone());
        loop {
            wait_ready(self.role, self.etcd, || async {
                source.set(match directory.get(&self.key).await {
                    Ok((Some(_), _)) => Vec::new(),
                    Ok((None, _)) => vec![format!("{} is not in the directory", String::from_utf8_lossy(&self.key))],
                    Err(e) => vec![format!("directory: {e}")],
                });
                source.not_ready()
            })
            .await;
            // An outage of the directory does not make a member unready that was ready (design 6.8); its absence does.
            while !matches!(directory.get(&self.key).await, Ok((None, _))) {
                sleep(RECHECK_EVERY).await;
            }
        }
    }
}

/// Waits until `look` finds no reason; says now and then that it still tries, and why.
async fn wait_ready<F: Future<Output = Vec<String>>>(role: &str, etcd: &str, mut look: impl FnMut() -> F) {
    let mut looks = 0;
    loop {
        let reasons = look().await;
        if reasons.is_empty() {
            return tracing::info!("{role}: ready");
        }
        if looks % SAY_LOOKS == SAY_LOOKS / 4 {
            tracing::warn!("{role}: not ready, and keeps trying etcd at {etcd}: {}", reasons.join("; "));
        }
        looks += 1;
        sleep(LOOK_EVERY).await;
    }
}
