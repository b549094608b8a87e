//! A gateway as a whole, on a directory in memory.

use std::time::Duration;

use tokio::{sync::oneshot, time::timeout};

use super::*;
use crate::gateway::admission::Settings;

mod crash;

fn config() -> GatewayConfig {
    GatewayConfig {
        id: "gw-1".into(),
        advertise: "127.0.0.1:1".into(),
        admission: Settings::default(),
        keys_file: None,
        link: Default::default(),
        fast_path: true,
        placement: Vec::new(),
        held: HeldBudget::default(),
        drain: DrainConfig { notice: Duration::ZERO, rate_per_s: None, max: Some(Duration::from_secs(1)) },
    }
}

#[test]
fn the_spread_is_what_the_others_need() {
    assert_eq!(spread_ms(50_000, 10_000), 5_250);
    assert_eq!((spread_ms(1, 5_000), spread_ms(5_000_000, 5_000)), (1, SPREAD_MS_MAX));
    assert_eq!(spread_ms(100, 0), 0, "nobody else: as configured");
}

#[tokio::test]
async fn it_gets_ready_registers_and_drains() {
    let kv = Kv::memory();
    let (tx, rx) = oneshot::channel();
    let directory = kv.clone();
    let running = tokio::spawn(run(config(), Vec::new(), directory, std::future::pending(), |h| drop(tx.send(h))));
    let handle = rx.await.unwrap();
    let key = crate::placement::keys::gateway("gw-1");
    let ready = async {
        while !handle.not_ready().is_empty() || kv.get(&key).await.unwrap().0.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(5), ready).await.unwrap();
    assert_eq!(handle.directory().state, "synced");
    assert!(handle.metrics().encode().contains("holdfast_connections 0"));
    assert_eq!(handle.drain_status().state, "serving");
    handle.drain(DrainAsk::default());
    assert_eq!(handle.not_ready(), ["draining"]);
    timeout(Duration::from_secs(5), running).await.unwrap().unwrap().unwrap();
    assert!(kv.get(&key).await.unwrap().0.is_none(), "the lease is revoked");
}
