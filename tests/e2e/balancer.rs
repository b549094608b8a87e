//! The real balancers, with the configurations we ship, in front of two gateways.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    time::Instant,
};

use serde_json::{Value, json};
use tokio::net::TcpSocket;

use super::{
    client::Client,
    cluster::{Cluster, plan},
    process::{DEADLINE, LOOK_EVERY, Process, free_port, scratch},
    tokens,
};

/// As the examples in `config/` say.
const PROXY: &str = "[proxy]\nprotocol = \"optional\"\ntrusted = [\"127.0.0.1\"]\nforwarded_hops = 1\n";
/// Where the players come from; the balancers connect from 127.0.0.1.
const ANN: &str = "127.0.0.7";
const BOB: &str = "127.0.0.8";

/// A balancer in front of the gateways of an installation.
struct Balancer {
    _process: Process,
    /// Where its first and second way in listen.
    ways: [String; 2],
    _dir: tempfile::TempDir,
}

impl Balancer {
    /// Starts `program` with a shipped configuration in which nothing but ports (and nginx's directories) is replaced.
    fn start(program: &str, shipped: &str, cluster: &Cluster) -> Self {
        let dir = scratch();
        let ways = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
        let mut text = shipped.to_owned();
        for (what, with) in [
            ("127.0.0.1:8081", cluster.gateways[0].addr.as_str()),
            ("127.0.0.1:8082", &cluster.gateways[1].addr),
            ("bind :8080", &format!("bind {}", ways[0])),
            ("bind :8090", &format!("bind {}", ways[1])),
            ("listen 8080", &format!("listen {}", ways[0])),
            ("http {\n", &own_directories(dir.path())),
        ] {
            text = text.replace(what, with);
        }
        let config = dir.path().join("balancer.conf");
        std::fs::write(&config, text).unwrap();
        // nginx as one process: workers would outlive a master that is killed
        let one = format!("daemon off; master_process off; pid {}/pid;", dir.path().display());
        let config = config.to_str().unwrap();
        let args = match program {
            "haproxy" => vec!["-db", "-f", config],
            _ => vec!["-c", config, "-p", dir.path().to_str().unwrap(), "-g", &one],
        };
        // not on the search path of everybody
        let system = format!("/usr/sbin/{program}");
        let program = if Path::new(&system).exists() { &system } else { program };
        let mut process = Process::start(program, &args, dir.path().join("balancer.log"));
        let by = Instant::now() + DEADLINE;
        while TcpStream::connect(&ways[0]).is_err() {
            assert!(process.ended().is_none(), "{program} ended (is it installed?):\n{}", process.output());
            assert!(Instant::now() < by, "{program} does not listen:\n{}", process.output());
            std::thread::sleep(LOOK_EVERY);
        }
        Self { _process: process, ways, _dir: dir }
    }
}

/// nginx keeps its temporary files in directories that only root may use.
fn own_directories(dir: &Path) -> String {
    let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let lines = kinds.map(|kind| format!("    {kind}_temp_path {}/{kind};\n", dir.display()));
    format!("http {{\n{}", lines.concat())
}

/// The body of a page of an admin server.
fn get(addr: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// The sum of a counter over its labels.
fn count(admin: &str, name: &str) -> u64 {
    let text = get(admin, "/metrics");
    let lines = text.lines().filter(|l| l.starts_with(name)).map(|l| l.rsplit_once(' ').unwrap().1);
    lines.map(|n| n.parse::<u64>().unwrap()).sum()
}

/// The gateway and the connection for which `fits`, once there is one.
async fn connection(cluster: &Cluster, gateways: &[usize], fits: impl Fn(&Value) -> bool) -> (usize, Value) {
    let by = Instant::now() + DEADLINE;
    loop {
        for &i in gateways {
            let all: Vec<Value> = serde_json::from_str(&get(&cluster.gateways[i].admin, "/connections")).unwrap();
            if let Some(found) = all.into_iter().find(&fits) {
                return (i, found);
            }
        }
        assert!(Instant::now() < by, "no such connection");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Ann and Bob play through `way`; the gateway of one of them dies, and both play on.
async fn play_and_lose_a_gateway(cluster: &mut Cluster, way: &str) {
    let session = "g1";
    cluster.create("game", session);
    let mut ann = Client::open_from(way, &tokens::token("ann", "white"), ANN).await;
    let mut bob = Client::open_from(way, &tokens::token("bob", "black"), BOB).await;
    ann.attach(session).await;
    bob.attach(session).await;
    assert_eq!(ann.settle(session, &json!({"move": "e2e4"})).await, 1);
    bob.expect("event", |e| e["ver"] == 1).await;
    let (of_ann, seen) = connection(cluster, &[0, 1], |c| c["principal"] == "ann").await;
    assert!(seen["peer"].as_str().unwrap().starts_with("127.0.0.7:") && seen["peer_known"] == true, "{seen}");
    let (of_bob, seen) = connection(cluster, &[0, 1], |c| c["principal"] == "bob").await;
    assert!(seen["peer"].as_str().unwrap().starts_with("127.0.0.8:") && seen["peer_known"] == true, "{seen}");
    assert_ne!(of_ann, of_bob, "by the number of connections each has one");
    let failures: Vec<u64> = cluster.gateways.iter().map(|g| count(&g.admin, "holdfast_refused_total")).collect();
    assert_eq!(failures, [0, 0], "neither clients nor health checks");

    let bob = bob.rest();
    cluster.gateways[of_ann].process.kill();
    ann.closed().await;
    // at once, before any health check can have found out
    let mut ann = ann.reconnect_from(way, ANN).await;
    let (_, seen) = connection(cluster, &[of_bob], |c| c["principal"] == "ann").await;
    assert!(seen["peer"].as_str().unwrap().starts_with("127.0.0.7:"), "{seen}");
    let mut bob = bob.back().await;
    ann.attach(session).await;
    assert_eq!(bob.settle(session, &json!({"move": "e7e5"})).await, 2);
    assert_eq!(ann.settle(session, &json!({"move": "g1f3"})).await, 3);
    bob.expect("event", |e| e["ver"] == 3).await;
    assert_eq!(count(&cluster.gateways[of_bob].admin, "holdfast_refused_total"), 0);
}

/// A client that names somebody else in `X-Forwarded-For` is still seen at its own address.
async fn forge(cluster: &Cluster, way: &str) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.9:0".parse().unwrap()).unwrap();
    let socket = socket.connect(way.parse().unwrap()).await.unwrap();
    let forger = Client::upgrade_as(way, socket, &[("x-forwarded-for", "6.6.6.6")]).await;
    let (i, seen) = connection(cluster, &[0, 1], |c| c["principal"].is_null()).await;
    assert!(seen["peer"].as_str().unwrap().starts_with("127.0.0.9:"), "{seen}");
    // the balancer counts it no more: whoever comes next is spread evenly
    drop(forger);
    let by = Instant::now() + DEADLINE;
    while get(&cluster.gateways[i].admin, "/connections").trim() != "[]" {
        assert!(Instant::now() < by, "it stays");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Health checks go on, and each gateway has had some.
async fn until_checked(cluster: &Cluster) {
    for gateway in &cluster.gateways {
        let (by, before) = (Instant::now() + DEADLINE, count(&gateway.admin, "holdfast_accepted_total"));
        while count(&gateway.admin, "holdfast_accepted_total") < before + 3 {
            assert!(Instant::now() < by, "{} is not checked", gateway.name);
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn haproxy_in_tcp_mode_with_proxy_protocol() {
    let mut cluster = plan().gateways(2).gateway_config(PROXY).start().await;
    let balancer = Balancer::start("haproxy", include_str!("../../config/haproxy.cfg"), &cluster);
    until_checked(&cluster).await;
    play_and_lose_a_gateway(&mut cluster, &balancer.ways[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn haproxy_in_http_mode_with_forwarded_for() {
    let mut cluster = plan().gateways(2).gateway_config(PROXY).start().await;
    let balancer = Balancer::start("haproxy", include_str!("../../config/haproxy.cfg"), &cluster);
    until_checked(&cluster).await;
    forge(&cluster, &balancer.ways[1]).await;
    play_and_lose_a_gateway(&mut cluster, &balancer.ways[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_with_forwarded_for() {
    let mut cluster = plan().gateways(2).gateway_config(PROXY).start().await;
    let balancer = Balancer::start("nginx", include_str!("../../config/nginx.conf"), &cluster);
    forge(&cluster, &balancer.ways[0]).await;
    play_and_lose_a_gateway(&mut cluster, &balancer.ways[0]).await;
}

/// Envoy is in no package here, so only the structure is looked at: the keys by which its parts refer to each other.
#[test]
fn envoy_yaml_is_consistent() {
    let yaml: Value = serde_norway::from_str(include_str!("../../config/envoy.yaml")).unwrap();
    let resources = &yaml["static_resources"];
    let clusters = resources["clusters"].as_array().unwrap();
    for cluster in clusters {
        let lb = &cluster["load_assignment"]["endpoints"][0]["lb_endpoints"];
        let port = |e: &Value| e["endpoint"]["address"]["socket_address"]["port_value"].as_u64().unwrap();
        assert_eq!(lb.as_array().unwrap().iter().map(port).collect::<Vec<_>>(), [8081, 8082]);
        assert_eq!(cluster["health_checks"][0]["http_health_check"]["path"], "/readyz");
        assert_eq!(cluster["lb_policy"], "LEAST_REQUEST");
    }
    let filter = |i: usize| &resources["listeners"][i]["filter_chains"][0]["filters"][0]["typed_config"];
    let (http, tcp) = (filter(0), filter(1));
    assert!(http["@type"].as_str().unwrap().ends_with("http_connection_manager.v3.HttpConnectionManager"));
    assert_eq!(
        (&http["use_remote_address"], &http["upgrade_configs"][0]["upgrade_type"]),
        (&json!(true), &json!("websocket"))
    );
    let route = &http["route_config"]["virtual_hosts"][0]["routes"][0]["route"];
    assert_eq!(route["timeout"], "0s", "a WebSocket is one long request");
    for (named, proxy) in [(&route["cluster"], false), (&tcp["cluster"], true)] {
        let cluster = clusters.iter().find(|c| c["name"] == *named).unwrap_or_else(|| panic!("no cluster {named}"));
        let version = &cluster["transport_socket"]["typed_config"]["config"]["version"];
        assert_eq!(version == "V2", proxy, "{named}");
    }
    // twice limits.ping, and more
    for idle in [&http["stream_idle_timeout"], &tcp["idle_timeout"]] {
        let seconds: u64 = idle.as_str().and_then(|t| t.strip_suffix('s')).and_then(|t| t.parse().ok()).unwrap();
        assert!(seconds > 5, "{idle}");
    }
}
