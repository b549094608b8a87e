//! `holdfast sessions`: over the placement service's API.

use std::time::Duration;

use anyhow::Context as _;
use holdfast_core::{
    id::{Boot, SessionId},
    proto::{CreateSessionRequest, LocateRequest, PlacementReply, placement::State},
};
use tonic::transport::{Channel, Endpoint};

use crate::upstream::rpc::placement_service_client::PlacementServiceClient;

/// One transaction in etcd and one hop.
const ANSWER_MAX: Duration = Duration::from_secs(5);

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
        SessionsCommand::Show { id, at } => {
            let request = LocateRequest { session: SessionId::parse(&id)?.to_string() };
            print(&client(&at).await?.locate(request).await.map_err(said)?.into_inner());
        }
    }
    Ok(())
}

async fn client(at: &PlacementArg) -> anyhow::Result<PlacementServiceClient<Channel>> {
    let host = at.placement.trim_start_matches("http://");
    let endpoint = Endpoint::from_shared(format!("http://{host}"))?.timeout(ANSWER_MAX).connect_timeout(ANSWER_MAX);
    let channel = endpoint.connect().await.with_context(|| format!("placement at {host} cannot be reached"))?;
    Ok(PlacementServiceClient::new(channel))
}

fn said(status: tonic::Status) -> anyhow::Error {
    anyhow::anyhow!("placement: {}: {}", status.code(), status.message())
}

fn print(reply: &PlacementReply) {
    let placement = reply.placement.clone().unwrap_or_default();
    let state = match State::try_from(placement.state) {
        Ok(State::Active) if placement.owner.is_empty() => "parked (no owner has room)",
        Ok(State::Active) => "active",
        Ok(State::Ended) => "ended",
        _ => "unknown",
    };
    println!(
        "session   {}\nkind      {}\nstate     {state}\nepoch     {}",
        reply.session, placement.kind, placement.epoch
    );
    if !placement.owner.is_empty() {
        println!("owner     {} at {} (boot {})", placement.owner, reply.addr, Boot(placement.boot));
    }
}
