//! Configurations that cannot work say so: what, where, and what would be right.

use std::{net::TcpListener, path::PathBuf};

use super::{
    process::{DEADLINE, Etcd, LOOK_EVERY, Process, free_port, holdfast, scratch},
    tokens,
};

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        let dir = scratch();
        std::fs::write(dir.path().join("jwks.json"), tokens::jwks()).unwrap();
        Self(dir)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text.replace("DIR", self.0.path().to_str().unwrap())).unwrap();
        path
    }

    /// What `command` says when it refuses to start with this configuration.
    fn refusal(&self, command: &str, text: &str) -> String {
        let path = self.file("bad.toml", text);
        let mut process = Process::start(
            env!("CARGO_BIN_EXE_holdfast"),
            &[command, "--config", path.to_str().unwrap()],
            self.0.path().join("bad.log"),
        );
        assert!(!process.wait().success(), "{}", process.output());
        let said = process.output();
        std::fs::remove_file(self.0.path().join("bad.log")).unwrap();
        assert!(!said.contains("panicked"), "{said}");
        said
    }
}

/// A gateway's configuration that would work but for `more`, on a port of its own.
fn gateway(more: &str, directory: &str) -> String {
    let port = free_port();
    format!(
        "node = \"gw\"\nadmin = \"\"\nlisten = \"127.0.0.1:{port}\"\n{more}\n[auth]\njwks = \"DIR/jwks.json\"\n[directory]\nendpoints = [\"{directory}\"]\n"
    )
}

#[test]
fn an_unknown_key_names_the_line_and_the_nearest_key() {
    let dir = Dir::new();
    let text = gateway("lisen_plain = \"127.0.0.1:1\"", "http://127.0.0.1:1");
    let said = dir.refusal("gateway", &text);
    assert!(said.contains("bad.toml:4") && said.contains("`listen_plain`"), "{said}");
    let path = dir.file("check.toml", &text);
    let (status, said) = holdfast(&["check-config", "gateway", path.to_str().unwrap()]);
    assert!(!status.success() && said.contains("listen_plain"), "{said}");
    for command in ["owner", "placement"] {
        let said = dir.refusal(command, "nodes = \"x\"\n");
        assert!(said.contains("`node`"), "{said}");
    }
}

#[test]
fn a_wrong_unit_names_the_value_and_the_units() {
    let dir = Dir::new();
    let said = dir.refusal("gateway", &gateway("[drain]\nmax = \"60parsecs\"", "http://127.0.0.1:1"));
    assert!(said.contains("60parsecs") && said.contains("ms, s"), "{said}");
    let said = dir.refusal("gateway", "[limits]\nframe = 65536\n");
    assert!(said.contains("65536") && said.contains("KiB"), "{said}");
}

#[test]
fn a_port_in_use_names_the_address() {
    let dir = Dir::new();
    let etcd = Etcd::start(dir.0.path(), "directory");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    for command in ["gateway", "owner", "placement"] {
        let auth = if command == "gateway" { "[auth]\njwks = \"DIR/jwks.json\"\n" } else { "" };
        let store = if command == "owner" { "[store]\nkind = \"memory\"\n" } else { "" };
        let text = format!(
            "admin = \"\"\nlisten = \"{addr}\"\n[directory]\nendpoints = [\"{}\"]\n{auth}{store}",
            etcd.endpoint()
        );
        let said = dir.refusal(command, &text);
        assert!(said.contains(&addr) && said.to_lowercase().contains("in use"), "{command}: {said}");
    }
}

#[test]
fn an_unreadable_certificate_names_the_file() {
    let dir = Dir::new();
    let tls =
        |cert: &str| format!("{}[tls]\ncert = \"{cert}\"\nkey = \"DIR/key.pem\"\n", gateway("", "http://127.0.0.1:1"));
    let said = dir.refusal("gateway", &tls("DIR/nowhere.pem"));
    assert!(said.contains("nowhere.pem"), "{said}");
    dir.file("odd.pem", "this is no certificate\n");
    dir.file("key.pem", "nor is this a key\n");
    let said = dir.refusal("gateway", &tls("DIR/odd.pem"));
    assert!(said.contains("odd.pem"), "{said}");
}

/// A directory that is away at the start is waited for, not died of; its endpoint is named.
#[test]
fn an_unreachable_etcd_is_named_and_waited_for() {
    let dir = Dir::new();
    let endpoint = format!("http://127.0.0.1:{}", free_port());
    let path = dir.file("gw.toml", &gateway("", &endpoint));
    let args = ["gateway", "--config", path.to_str().unwrap()];
    let mut process = Process::start(env!("CARGO_BIN_EXE_holdfast"), &args, dir.0.path().join("gw.log"));
    let by = std::time::Instant::now() + DEADLINE;
    let host = endpoint.trim_start_matches("http://").to_owned();
    while !process.output().contains(&host) {
        assert!(std::time::Instant::now() < by, "nothing said of {host}:\n{}", process.output());
        assert!(process.ended().is_none(), "it ended:\n{}", process.output());
        std::thread::sleep(LOOK_EVERY);
    }
    process.signal("TERM");
    assert!(process.wait().success(), "{}", process.output());
}
