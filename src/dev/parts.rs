//! The parts of `holdfast dev`, told what they need.

use std::{future::Future, time::Duration};

use anyhow::Context as _;
use tokio::sync::oneshot;

use crate::{
    cli::startup::Shutdown,
    client,
    gateway::{
        admission::Settings,
        jwks::Jwks,
        limits::{Limits, ListenerConfig},
        run::{self, DrainConfig, GatewayConfig, GatewayHandle, HeldBudget},
    },
    owner::OwnerConfig,
    placement::{self, PlacementConfig, kv::Kv},
    transport::trust::Trust,
};

/// Name of the gateway.
const GATEWAY: &str = "gw-dev";

/// The placement service at `listen`.
pub fn placement(listen: String, directory: Kv, stop: Shutdown) -> impl Future<Output = anyhow::Result<()>> {
    let config = PlacementConfig { node: "placement-dev".into(), listen, ..PlacementConfig::default() };
    placement::run(config, directory, stop.wait())
}

/// Where the gateway listens and whom it believes.
pub struct Door {
    /// `ip:port`.
    pub listen: String,
    /// HS256 secret of the tokens.
    pub secret: [u8; 32],
    /// `host:port` of placement.
    pub placement: String,
}

/// The gateway; `started` gets its handle.
///
/// # Errors
/// It cannot listen, or a part of it ended.
pub async fn gateway(
    door: Door,
    directory: Kv,
    stop: Shutdown,
    started: oneshot::Sender<GatewayHandle>,
) -> anyhow::Result<()> {
    let config = GatewayConfig {
        id: GATEWAY.into(),
        advertise: door.listen.clone(),
        admission: Settings::default(),
        keys_file: None,
        link: Default::default(),
        fast_path: true,
        placement: vec![door.placement],
        held: HeldBudget::default(),
        // Owners stop at the same moment: nothing held could settle.
        drain: DrainConfig { notice: Duration::ZERO, rate_per_s: None, max: Some(Duration::ZERO) },
    };
    let listener = ListenerConfig {
        listen: door.listen.parse().context("not an address")?,
        tls: None,
        keys: Jwks::from_secret(&door.secret)?,
        origins: Vec::new(),
        gateway: GATEWAY.into(),
        features: Vec::new(),
        pages: Some(client::pages()),
        ready: None,
        trust: Trust::default(),
        limits: Limits::default(),
    };
    run::run(config, vec![listener], directory, stop.wait(), |handle| {
        // The receiver is gone only when the process stops.
        let _ = started.send(handle);
    })
    .await
}

/// An owner of every kind.
#[must_use]
pub fn owner(node: &str, listen: &str, kvs: (&Kv, &Kv)) -> OwnerConfig {
    let (directory, store) = kvs;
    OwnerConfig { listen: listen.into(), ..OwnerConfig::new(node, directory.clone(), store.clone()) }
}
