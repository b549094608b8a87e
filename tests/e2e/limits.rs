//! Operators change limits while a gateway runs: by command, by request, by SIGHUP.

use std::time::Instant;

use super::{
    cluster::{Cluster, plan},
    process::{DEADLINE, LOOK_EVERY, holdfast},
};

/// What `holdfast limits` says of the first gateway.
fn limits(cluster: &Cluster, verb: &str, args: &[&str]) -> (bool, String) {
    let (status, said) = holdfast(&[&["limits", verb, "--admin", &cluster.gateways[0].admin], args].concat());
    (status.success(), said)
}

/// Value and default of a limit.
fn value(cluster: &Cluster, name: &str) -> Vec<String> {
    let (ok, said) = limits(cluster, "get", &[name]);
    assert!(ok, "{said}");
    let line = said.lines().find(|l| l.starts_with(name)).unwrap();
    line.split_whitespace().skip(1).take(2).map(Into::into).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_change_by_command_and_by_sighup_and_nobody_is_dropped() {
    let cluster = plan().start().await;
    let mut ann = cluster.client(0, "ann", "white").await;
    cluster.create("game", "g1");
    ann.attach("g1").await;

    let (ok, said) = limits(&cluster, "set", &["admit_per_s=77", "horizon=30s"]);
    assert!(ok, "{said}");
    assert_eq!(value(&cluster, "admit_per_s"), ["77", "5000"]);
    assert_eq!(value(&cluster, "horizon")[0], "30s");

    for (bad, why) in [
        ("admit_per_s=0", "1 to 1000000 1/s"),
        ("horizon=1ms", "1000 to 600000 ms"),
        ("admit=3", "no limit of that name"),
        ("share_known=99", "100 %"),
    ] {
        let (ok, said) = limits(&cluster, "set", &["attach_per_s=5", bad]);
        assert!(!ok && said.contains(why), "{bad}: {said}");
    }
    assert_ne!(value(&cluster, "attach_per_s")[0], "5", "all of them or none");

    // A mistake in the file changes nothing; the mended file holds, for what the command had changed too.
    let gateway = &cluster.gateways[0];
    let good = std::fs::read_to_string(&gateway.config).unwrap();
    std::fs::write(&gateway.config, format!("admit_per_s = 0\n{good}")).unwrap();
    gateway.process.signal("HUP");
    until(|| gateway.process.output().contains("the limits stay as they were")).await;
    assert_eq!(value(&cluster, "admit_per_s")[0], "77");
    std::fs::write(&gateway.config, format!("admit_per_s = 123\n{good}")).unwrap();
    gateway.process.signal("HUP");
    until(|| value(&cluster, "admit_per_s")[0] == "123").await;

    assert_eq!(ann.settle("g1", &serde_json::json!({"move": "e2e4"})).await, 1, "still connected");
}

async fn until(done: impl Fn() -> bool) {
    let by = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < by, "it did not come to that");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
