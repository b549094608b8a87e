//! Owner links and placement's API with a token and mutual TLS, over real sockets.

use std::{path::PathBuf, sync::Arc, time::Duration};

use holdfast_core::{
    id::{Boot, LinkId, SessionId},
    proto::NodeInfo,
};
use prost::Message as _;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tonic::Code;

use super::{
    dial::{DialError, LinkConfig, Target, dial},
    security::Security,
};
use crate::{
    clock::Clock,
    metrics::Metrics,
    owner::{self, OwnerConfig},
    placement::{self, PlacementConfig, client::PlacementClient, keys, kv::Kv},
};

/// A fleet: an authority, a certificate for the loopback address signed by it, and its key.
fn fleet(dir: &tempfile::TempDir, name: &str) -> [PathBuf; 3] {
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate().unwrap();
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let own_pem = own.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap().pem();
    let files = ["ca", "cert", "key"].map(|f| dir.path().join(format!("{name}-{f}.pem")));
    for (file, text) in files.iter().zip([ca_pem, own_pem, key.serialize_pem()]) {
        std::fs::write(file, text).unwrap();
    }
    files
}

fn secured(token: &str, [ca, cert, key]: &[PathBuf; 3]) -> Security {
    Security::default().with_token(token).unwrap().with_tls(ca, cert, key).unwrap()
}

/// Which of the securities get a link to the owner.
async fn linked(target: &Target, security: Security) -> Result<(), DialError> {
    let config = LinkConfig { security, ..LinkConfig::new("gw-1") };
    dial(&config, target.clone(), &Clock::start(), &Arc::new(Metrics::new())).await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_takes_only_links_of_its_fleet() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (fleet(&dir, "ours"), fleet(&dir, "theirs"));
    let (directory, store) = (Kv::memory(), Kv::memory());
    let config = OwnerConfig { link: secured("secret", &ours), ..OwnerConfig::new("o1", directory.clone(), store) };
    let running = tokio::spawn(owner::run(config, std::future::pending()));
    let info = loop {
        if let Some(item) = directory.get(&keys::node("o1")).await.unwrap().0 {
            break NodeInfo::decode(item.value).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let target = Target { node: "o1".into(), boot: Boot(info.boot), addr: info.addr.as_str().into(), link: LinkId(1) };
    linked(&target, secured("secret", &ours)).await.expect("of the fleet");
    let [ca, cert, key] = &ours;
    let without_token = Security::default().with_tls(ca, cert, key).unwrap();
    let mixed = [theirs[0].clone(), cert.clone(), key.clone()];
    let unsigned = [ca.clone(), theirs[1].clone(), theirs[2].clone()];
    for (who, security) in [
        ("without a token", without_token),
        ("with another token", secured("secreT", &ours)),
        ("without TLS", Security::default().with_token("secret").unwrap()),
        ("that trusts another authority", secured("secret", &mixed)),
        ("whose certificate another authority signed", secured("secret", &unsigned)),
    ] {
        let refused = linked(&target, security).await;
        assert!(matches!(refused, Err(DialError::Failed(_))), "one {who}: {refused:?}");
    }
    running.abort();
    drop(running.await);
    // what says that a process is gone says so through TLS as well
    let gone = linked(&target, secured("secret", &ours)).await;
    assert!(matches!(gone, Err(DialError::Refused)), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn placement_answers_only_its_fleet() {
    let dir = tempfile::tempdir().unwrap();
    let ours = fleet(&dir, "ours");
    let security = secured("secret", &ours);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let config = PlacementConfig { link: security.clone(), ..PlacementConfig::default() };
    let running = tokio::spawn(placement::run_on(config, Kv::memory(), listener, std::future::pending()));
    let session = SessionId::parse("s").unwrap();
    let ask = |security: &Security| {
        let client = PlacementClient::new(vec![addr.clone()], None).secured(security);
        let session = session.clone();
        async move { client.locate(&session).await.unwrap_err().code() }
    };
    assert_eq!(ask(&security).await, Code::NotFound, "it was asked");
    let wrong = secured("other", &ours);
    assert_eq!(ask(&wrong).await, Code::Unauthenticated);
    running.abort();
}
