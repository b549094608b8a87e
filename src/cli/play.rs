//! `holdfast play`: a client on the command line. Connects, attaches, plays moves, prints each echo.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::client::{Client, Seat};

/// A held op settles within the hold TTL (13 s for games).
const ECHO_MAX: Duration = Duration::from_secs(20);

/// Who plays where.
#[derive(Debug, clap::Args)]
pub(super) struct PlayArgs {
    /// WebSocket URL of a gateway.
    #[arg(long, default_value = "ws://127.0.0.1:8080/v1/ws")]
    url: String,
    /// Token with a seat in the session.
    #[arg(long, env = "HOLDFAST_TOKEN", hide_env_values = true)]
    token: String,
    /// The session.
    #[arg(long)]
    session: String,
    /// Goes on printing what the others do, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    /// Moves (`e2e4`, `e7e8q`), or whole payloads as JSON (`{"hand":true}`), in order.
    moves: Vec<String>,
}

pub(super) async fn main(args: PlayArgs) -> anyhow::Result<()> {
    let mut seat = Seat::new(&args.url, &args.token, &args.session);
    let mut client = seat.connect((0, 0)).await?;
    println!("{}", client.attached);
    let mut seq = 0;
    for text in &args.moves {
        let data = if text.starts_with('{') {
            serde_json::from_str(text).with_context(|| format!("{text} is not JSON"))?
        } else {
            json!({ "move": text })
        };
        seq += 1;
        let sent = Instant::now();
        client.op(seq, 1, &data).await?;
        let echo = timeout(ECHO_MAX, settled(&mut client, seq)).await.context("no answer")??;
        println!("{echo}\n-- durable {:.1} ms after it was sent", sent.elapsed().as_secs_f64() * 1e3);
    }
    if args.moves.is_empty() || args.watch {
        // Ends with the connection or with the process.
        loop {
            let frame = client.next().await?;
            println!("{frame}");
        }
    }
    client.bye().await;
    Ok(())
}

/// Prints frames until op `seq` is acknowledged.
async fn settled(client: &mut Client, seq: u64) -> anyhow::Result<Value> {
    loop {
        let frame = client.next().await?;
        match frame["t"].as_str() {
            Some("event" | "ack") if frame["op"].as_u64() == Some(seq) => return Ok(frame),
            Some("nack") if frame["op"].as_u64() == Some(seq) => {
                bail!("refused: {} {}", frame["code"].as_str().unwrap_or("?"), frame["detail"].as_str().unwrap_or(""))
            }
            Some("snapshot" | "event" | "status") => println!("{frame}"),
            _ => {}
        }
    }
}
