//! `holdfast sessions`: over the placement service's API.

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use holdfast_core::{
    id::{Boot, SessionId},
    proto::{CreateSessionRequest, LocateRequest, Placement, PlacementReply, placement::State},
};
use prost::Message as _;

use crate::{
    config::LinkTls,
    placement::{
        keys::{self, DirKey},
        kv::{Kv, etcd::Options},
    },
    upstream::{rpc::placement_service_client::PlacementServiceClient, security::Secured},
};

/// One transaction in etcd and one hop.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Entries read at a time: 10,000 at ~100 bytes are 1 MB.
const PAGE: usize = 10_000;

#[derive(Debug, clap::Subcommand)]
pub(super) enum SessionsCommand {
    /// Creates a session (again: the same answer).
    Create {
        /// game, meeting or document.
        #[arg(long)]
        kind: String,
        /// Its id: up to 128 of A-Z a-z 0-9 . _ : ~ -
        #[arg(long)]
        id: String,
        /// The clock of a game: minutes' seconds + increment, `180+2`.
        #[arg(long)]
        clock: Option<String>,
        #[command(flatten)]
        at: PlacementArg,
    },
    /// Every session in the directory, ended ones of the last day included.
    List {
        /// etcd of the directory. May be repeated.
        #[arg(long, default_value = "http://127.0.0.1:2379", value_name = "URL")]
        directory: Vec<String>,
    },
    /// Who owns a session.
    Show {
        /// Its id.
        id: String,
        #[command(flatten)]
        at: PlacementArg,
    },
}

/// Where placement is.
#[derive(Debug, clap::Args)]
pub(super) struct PlacementArg {
    /// Address of the placement service (its leader).
    #[arg(long, default_value = "127.0.0.1:7100", value_name = "HOST:PORT")]
    placement: String,
    /// File with the token it wants to be shown (its link_token_file).
    #[arg(long, value_name = "FILE")]
    link_token_file: Option<PathBuf>,
    /// Mutual TLS: PEM files of the authority, a certificate and its key (its [link_tls]).
    #[arg(long, value_names = ["CA", "CERT", "KEY"], num_args = 3)]
    link_tls: Vec<PathBuf>,
}

pub(super) async fn main(command: SessionsCommand) -> anyhow::Result<()> {
    match command {
        SessionsCommand::Create { kind, id, clock, at } => {
            let session = SessionId::parse(&id)?.to_string();
            // parameters of a session travel in its kind: "game:180+2"
            let kind = clock.map_or(kind.clone(), |c| format!("{kind}:{c}"));
            let request = CreateSessionRequest { session, kind, prefer_zone: String::new() };
            print(&client(&at).await?.create_session(request).await.map_err(said)?.into_inner());
        }
        SessionsCommand::List { directory } => list(&Kv::etcd(directory, Options::default())).await?,
        SessionsCommand::Show { id, at } => {
            let request = LocateRequest { session: SessionId::parse(&id)?.to_string() };
            print(&client(&at).await?.locate(request).await.map_err(said)?.into_inner());
        }
    }
    Ok(())
}

async fn list(directory: &Kv) -> anyhow::Result<()> {
    println!("{:<32} {:<16} {:<8} {:>6} owner", "session", "kind", "state", "epoch");
    let (mut from, mut revision, to) = (keys::DIR.as_bytes().to_vec(), 0, keys::prefix_end(keys::DIR.as_bytes()));
    loop {
        let page = directory.range(&from, &to, PAGE, revision).await.context("the directory")?;
        for item in &page.items {
            if let Some(DirKey::Unit(unit)) = DirKey::parse(&item.key) {
                let p = Placement::decode(item.value.clone())
                    .with_context(|| format!("{}: not readable", unit.as_str()))?;
                println!("{:<32} {:<16} {:<8} {:>6} {}", unit.as_str(), p.kind, state(&p), p.epoch, p.owner);
            }
        }
        let Some(last) = page.items.last().filter(|_| page.more) else { return Ok(()) };
        from.clone_from(&last.key);
        from.push(0);
        revision = page.revision;
    }
}

fn state(placement: &Placement) -> &'static str {
    match State::try_from(placement.state) {
        Ok(State::Active) if placement.owner.is_empty() => "parked",
        Ok(State::Active) => "active",
        Ok(State::Ended) => "ended",
        _ => "unknown",
    }
}

pub(super) async fn client(at: &PlacementArg) -> anyhow::Result<PlacementServiceClient<Secured>> {
    let host = at.placement.trim_start_matches("http://");
    let token = at.link_token_file.as_ref().map(|f| f.to_string_lossy()).unwrap_or_default();
    let tls = match &at.link_tls[..] {
        [ca, cert, key] => LinkTls::of(ca, cert, key),
        _ => LinkTls::default(),
    };
    let security = tls.security(&token)?;
    let endpoint = security.endpoint(host)?.timeout(ANSWER_MAX).connect_timeout(ANSWER_MAX);
    let channel = endpoint.connect().await.with_context(|| format!("placement at {host} cannot be reached"))?;
    Ok(PlacementServiceClient::with_interceptor(channel, security))
}

pub(super) fn said(status: tonic::Status) -> anyhow::Error {
    anyhow::anyhow!("placement: {}: {}", status.code(), status.message())
}

fn print(reply: &PlacementReply) {
    let placement = reply.placement.clone().unwrap_or_default();
    println!(
        "session   {}\nkind      {}\nstate     {}\nepoch     {}",
        reply.session,
        placement.kind,
        state(&placement),
        placement.epoch
    );
    if !placement.owner.is_empty() {
        println!("owner     {} at {} (boot {})", placement.owner, reply.addr, Boot(placement.boot));
    }
}
