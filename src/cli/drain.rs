//! `holdfast drain`: a gateway over its admin server, an owner over placement (design 7.3, 10).

use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::{
    http,
    sessions::{self, PlacementArg},
};
use holdfast_core::proto::{DrainNodeRequest, RehomeJob};

/// Placement tells of an owner's drain each 200 ms; nothing for this long means that nobody does any more.
const PROGRESS_MAX: Duration = Duration::from_secs(15);

/// What to drain, and how.
#[derive(Debug, clap::Args)]
pub(super) struct DrainArgs {
    /// Admin server of the gateway to drain.
    #[arg(long, default_value = "127.0.0.1:9090", value_name = "HOST:PORT")]
    admin: String,
    /// Clients (of an owner: sessions) sent away per second. [default: what the others can take]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,
    /// The gateway ends within so many seconds, whatever is left; 0 = at once. [default: as long as it takes]
    #[arg(long, value_name = "S", conflicts_with = "owner")]
    deadline: Option<u64>,
    /// Only say how far it is.
    #[arg(long, conflicts_with_all = ["rate", "deadline", "owner"])]
    status: bool,
    /// JSON as the server gave it.
    #[arg(long, conflicts_with = "owner")]
    json: bool,
    /// Drain this owner instead: its sessions go to the others, then it ends.
    #[arg(long, value_name = "NODE")]
    owner: Option<String>,
    #[command(flatten)]
    at: PlacementArg,
}

pub(super) async fn main(args: &DrainArgs) -> anyhow::Result<()> {
    if let Some(node) = &args.owner {
        return owner(node, args).await;
    }
    let body = if args.status {
        http::get_ok(&args.admin, "/drain").await?
    } else {
        let rate = args.rate.map(|r| format!("rate={r}"));
        let deadline = args.deadline.map(|d| format!("deadline={d}"));
        let query: Vec<_> = [rate, deadline].into_iter().flatten().collect();
        http::post_ok(&args.admin, &format!("/drain?{}", query.join("&"))).await?
    };
    if args.json {
        println!("{body}");
        return Ok(());
    }
    let said: Value = serde_json::from_str(&body)?;
    let n = |key: &str| said[key].as_u64().unwrap_or(0);
    println!("state          {}", said["state"].as_str().unwrap_or_default());
    println!("clients        {} of {} gone, {} told, {} forced", n("gone"), n("total"), n("told"), n("forced"));
    println!("held ops left  {}", n("held"));
    println!("ends within    {} s, at {} clients/s", n("seconds_left"), n("rate_per_s"));
    Ok(())
}

/// Follows the drain to its end. An owner that stops moving sessions (nobody has room) is an error.
async fn owner(node: &str, args: &DrainArgs) -> anyhow::Result<()> {
    let mut client = sessions::client(&args.at).await?;
    let request = DrainNodeRequest { node: node.to_owned(), sessions_per_s: args.rate.unwrap_or(0) };
    let mut progress = client.drain_node(request).await.map_err(sessions::said)?.into_inner();
    let mut last = RehomeJob::default();
    loop {
        let next = tokio::time::timeout(PROGRESS_MAX, progress.message()).await.context("placement went silent")?;
        match next.map_err(sessions::said)? {
            Some(job) if (job.done, job.total) != (last.done, last.total) => {
                println!("{node}: {} of {} sessions moved", job.done, job.total);
                last = job;
            }
            Some(_) => {}
            None if last.done == last.total => return Ok(()),
            None => bail!("{node}: {} of {} sessions moved, then placement stopped", last.done, last.total),
        }
    }
}
