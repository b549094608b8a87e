//! `holdfast status`, `holdfast held` and `holdfast connections`: an admin server's answers on a terminal.

use serde_json::Value;

use super::http;

/// Which admin server.
#[derive(Debug, clap::Args)]
pub(super) struct AdminArg {
    /// Address of the admin server.
    #[arg(long, default_value = "127.0.0.1:9090", value_name = "HOST:PORT")]
    admin: String,
    /// JSON as the server gave it.
    #[arg(long)]
    json: bool,
}

pub(super) async fn status(arg: &AdminArg) -> anyhow::Result<()> {
    let body = http::get_ok(&arg.admin, "/status").await?;
    if arg.json {
        println!("{body}");
        return Ok(());
    }
    let status: Value = serde_json::from_str(&body)?;
    for (key, value) in status.as_object().into_iter().flatten() {
        match value {
            Value::Array(items) if items.is_empty() => println!("{key:<20} -"),
            Value::Array(items) => items.iter().for_each(|i| println!("{key:<20} {}", text(i))),
            other => println!("{key:<20} {}", text(other)),
        }
    }
    Ok(())
}

pub(super) async fn held(arg: &AdminArg) -> anyhow::Result<()> {
    let body = http::get_ok(&arg.admin, "/held").await?;
    if arg.json {
        println!("{body}");
        return Ok(());
    }
    let held: Vec<Value> = serde_json::from_str(&body)?;
    println!(
        "{:<24} {:<16} {:<18} {:>8} {:>10} {:>5} {:>7}",
        "session", "principal", "lane", "seq", "age ms", "sends", "bytes"
    );
    for op in &held {
        let age_ms = op["age_us"].as_u64().unwrap_or(0) / 1000;
        println!(
            "{:<24} {:<16} {:<18} {:>8} {age_ms:>10} {:>5} {:>7}",
            text(&op["session"]),
            text(&op["principal"]),
            text(&op["lane"]),
            text(&op["seq"]),
            text(&op["sends"]),
            text(&op["bytes"])
        );
    }
    println!("{} held", held.len());
    Ok(())
}

pub(super) async fn connections(arg: &AdminArg) -> anyhow::Result<()> {
    let body = http::get_ok(&arg.admin, "/connections").await?;
    if arg.json {
        println!("{body}");
        return Ok(());
    }
    let connections: Vec<Value> = serde_json::from_str(&body)?;
    println!("{:<10} {:<28} {:<16} {:>8} {:>10}", "conn", "peer", "principal", "sessions", "queued B");
    for c in &connections {
        let behind = if c["peer_known"] == true { "" } else { "behind " };
        println!(
            "{:<10} {:<28} {:<16} {:>8} {:>10}",
            text(&c["conn"]),
            format!("{behind}{}", text(&c["peer"])),
            c["principal"].as_str().unwrap_or("-"),
            c["sessions"].as_array().map_or(0, Vec::len),
            text(&c["queued_bytes"])
        );
    }
    println!("{} connections", connections.len());
    Ok(())
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
