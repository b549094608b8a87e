//! Behind a balancer: whose address is seen, what is reset, and that health checks are no failures.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_tungstenite::{client_async, tungstenite::client::IntoClientRequest as _};

use super::harness::{Bench, Peer, bench, config};
use crate::transport::{
    tls::Tls,
    trust::{Header, Trust},
};

fn behind(header: Header, trusted: &str) -> Bench {
    let networks = vec![trusted.parse().unwrap()];
    let mut config = config();
    config.trust = Trust { header, networks, forwarded_hops: 1 };
    bench(config)
}

/// An upgrade behind `before`, with these lines of `X-Forwarded-For`.
async fn upgrade(bench: &Bench, before: &[u8], forwarded: &[&str]) -> Peer {
    let mut request = format!("ws://{}/v1/ws", bench.addr).into_client_request().unwrap();
    request.headers_mut().insert("sec-websocket-protocol", "holdfast.v1.json".parse().unwrap());
    for value in forwarded {
        request.headers_mut().append("x-forwarded-for", value.parse().unwrap());
    }
    let mut stream = TcpStream::connect(bench.addr).await.unwrap();
    stream.write_all(before).await.unwrap();
    let mut peer = Peer { socket: client_async(request, stream).await.unwrap().0 };
    peer.say(&bench.hello(&json!({}))).await;
    assert_eq!(peer.hear().await["t"], "welcome");
    peer
}

/// What is read until the end; `None` if the end is a reset.
async fn exchange(bench: &Bench, sent: &[u8], then_reset: bool) -> Option<String> {
    let mut stream = TcpStream::connect(bench.addr).await.unwrap();
    stream.write_all(sent).await.unwrap();
    if then_reset {
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        return None;
    }
    let mut said = String::new();
    stream.read_to_string(&mut said).await.ok().map(|_| said)
}

async fn until(bench: &Bench, what: impl Fn(&Bench) -> bool) {
    for _ in 0..500 {
        if what(bench) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not in time: {:?}", bench.handle.stats());
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[tokio::test]
async fn the_clients_own_address_is_seen() {
    let v1 = b"PROXY TCP4 192.0.2.7 10.0.0.1 54321 8080\r\n";
    for (mode, before, forwarded, seen) in [
        (Header::Required, &v1[..], &[][..], "192.0.2.7:54321"),
        // the PROXY header names the client, who is no trusted hop
        (Header::Required, v1, &["6.6.6.6"], "192.0.2.7:54321"),
        (Header::Optional, b"", &["6.6.6.6, 192.0.2.8"], "192.0.2.8:0"),
        // a balancer that adds a line of its own
        (Header::Off, b"", &["6.6.6.6", "192.0.2.9"], "192.0.2.9:0"),
    ] {
        let bench = behind(mode, "127.0.0.0/8");
        let _peer = upgrade(&bench, before, forwarded).await;
        let view = &bench.handle.connections()[0];
        assert_eq!((view.peer.to_string().as_str(), view.peer.known), (seen, true), "{mode:?} {forwarded:?}");
    }
    let bench = behind(Header::Optional, "127.0.0.0/8");
    let _peer = upgrade(&bench, b"PROXY UNKNOWN\r\n", &[]).await;
    assert!(!bench.handle.connections()[0].peer.known);
}

#[tokio::test]
async fn headers_that_must_not_be_are_reset_and_counted() {
    let get = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n";
    let bench = behind(Header::Required, "127.0.0.0/8");
    assert_eq!(exchange(&bench, get, false).await, None);
    assert_eq!(exchange(&bench, b"PROXY TCP4 nonsense\r\n", false).await, None);
    let stats = bench.handle.stats();
    assert_eq!((count(&stats.proxy_missing), count(&stats.proxy_malformed)), (1, 1));
    for (mode, refused) in [(Header::Required, true), (Header::Optional, false)] {
        let bench = behind(mode, "10.0.0.0/8");
        assert_eq!(exchange(&bench, get, false).await.is_none(), refused);
        assert_eq!(exchange(&bench, b"PROXY UNKNOWN\r\nGET", false).await, None);
        assert_eq!(count(&bench.handle.stats().proxy_untrusted), 1 + u64::from(refused));
    }
}

#[tokio::test]
async fn health_checks_are_answered_and_are_no_failures() {
    let ready = Arc::new(AtomicBool::new(true));
    let mut config = config();
    let asked = ready.clone();
    config.ready = Some(Arc::new(move || asked.load(Ordering::Relaxed)));
    config.trust =
        Trust { header: Header::Optional, networks: vec!["127.0.0.1/32".parse().unwrap()], forwarded_hops: 0 };
    let bench = bench(config);
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").into_bytes();
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    for before in [&b""[..], local] {
        let said = exchange(&bench, &[before, &get("/readyz")].concat(), false).await.unwrap();
        assert!(said.starts_with("HTTP/1.1 200 ") && said.ends_with("ok\n"), "{said}");
    }
    ready.store(false, Ordering::Relaxed);
    assert!(exchange(&bench, &get("/readyz"), false).await.unwrap().starts_with("HTTP/1.1 503 "));
    assert!(exchange(&bench, &get("/livez"), false).await.unwrap().starts_with("HTTP/1.1 200 "));
    let post = b"POST /readyz HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    assert!(exchange(&bench, post, false).await.unwrap().starts_with("HTTP/1.1 405 "));
    // checks that only connect, politely or not, and one that hears no more than it needs
    drop(TcpStream::connect(bench.addr).await.unwrap());
    exchange(&bench, b"", true).await;
    exchange(&bench, local, true).await;
    until(&bench, |b| count(&b.handle.stats().silent) == 3).await;
    exchange(&bench, &get("/readyz"), true).await;
    until(&bench, |b| count(&b.handle.stats().accepted) == 9 && count(&b.handle.stats().open) == 0).await;
    let stats = bench.handle.stats();
    let failures = [&stats.handshakes_failed, &stats.proxy_missing, &stats.proxy_malformed, &stats.proxy_untrusted];
    assert_eq!(failures.map(count), [0; 4]);
}

#[tokio::test]
async fn tls_begins_right_behind_the_header() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("c.pem"), dir.path().join("k.pem"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    std::fs::write(&cert, made.cert.pem()).unwrap();
    let mut config = config();
    config.tls = Some(Tls::load(&cert, &key).unwrap());
    config.trust =
        Trust { header: Header::Required, networks: vec!["127.0.0.1/32".parse().unwrap()], forwarded_hops: 0 };
    let bench = bench(config);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut session = rustls::ClientConnection::new(Arc::new(tls), "localhost".try_into().unwrap()).unwrap();
    // header and ClientHello in one segment, and again a byte at a time
    let mut flight = b"PROXY TCP4 192.0.2.7 10.0.0.1 54321 443\r\n".to_vec();
    session.write_tls(&mut flight).unwrap();
    for pieces in [flight.len(), 1] {
        let mut stream = TcpStream::connect(bench.addr).await.unwrap();
        stream.set_nodelay(true).unwrap();
        for piece in flight.chunks(pieces) {
            stream.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        let mut record = [0; 6];
        stream.read_exact(&mut record).await.unwrap();
        // a handshake record with a ServerHello
        assert_eq!((record[0], record[5]), (22, 2), "{record:?}");
    }
}
