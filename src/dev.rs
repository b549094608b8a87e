//! `holdfast dev`: everything in one process, on a directory and a store in memory, outside of the owners.
//!
//! Gateway and placement share a runtime; each owner has its own ([`owners`]), so that it can be killed as a process would
//! be. With `--kill-owner-every` two players ([`players`]) play a game of their own meanwhile, and [`chaos`] tells what
//! happens to their moves.

mod chaos;
mod owners;
mod parts;
mod players;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use holdfast_core::{id::SessionId, proto::CreateSessionRequest};
use tokio::{sync::oneshot, time::sleep};

use self::owners::{Owners, free_addr};
use crate::{
    admin,
    cli::{
        startup::{self, Shutdown},
        token::{Signer, sessions_claim},
    },
    config::Span,
    gateway::run::GatewayHandle,
    placement::kv::Kv,
    upstream::rpc::placement_service_client::PlacementServiceClient,
};

/// The session of the printed line.
const GAME: &str = "demo";
/// Its clock: a newcomer reads before the second move.
const GAME_KIND: &str = "game:1800+30";
/// Tokens outlive an afternoon.
const TOKEN_TTL: Span = Span::secs(12 * 3600);
/// From the start to the first session: an election and three registrations, all in memory.
const READY_MAX: Duration = Duration::from_secs(20);
/// Between two tries meanwhile.
const READY_EVERY: Duration = Duration::from_millis(50);
/// Owners get this long to hand over and to leave the directory.
const STOP_MAX: Duration = Duration::from_secs(2);
/// Held ops looked at: the players have at most two.
const HELD_LOOK: usize = 1_000;

/// Options of `holdfast dev`.
#[derive(Debug, clap::Args)]
pub struct DevArgs {
    /// Port of the gateway on 127.0.0.1; 0 = a free one.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Port of the admin server on 127.0.0.1; 0 = a free one.
    #[arg(long, default_value_t = 9090)]
    admin_port: u16,
    /// Kills an owner now and then, the one of a game that two built-in players play: "20s".
    #[arg(long, value_name = "EVERY")]
    kill_owner_every: Option<Span>,
}

/// What the printed lines and the players need to know.
pub struct Demo {
    /// WebSocket URL.
    pub url: String,
    /// URL of the page.
    page: String,
    /// The running gateway.
    pub gateway: GatewayHandle,
    /// The directory.
    pub directory: Kv,
    placement: String,
    signer: Signer,
}

/// Runs until Ctrl-C.
///
/// # Errors
/// A port is in use, or a part ended by itself.
pub fn main(args: DevArgs) -> anyhow::Result<()> {
    startup::logs(true, "error")?;
    let runtime = startup::runtime()?;
    let outcome = runtime.block_on(startup::until_signal(false, |shutdown| everything(args, shutdown)));
    runtime.shutdown_timeout(STOP_MAX);
    outcome
}

async fn everything(args: DevArgs, shutdown: Shutdown) -> anyhow::Result<()> {
    let (directory, store) = (Kv::memory(), Kv::memory());
    let placement = free_addr()?;
    let listen = address(args.port, "--port")?;
    let admin = admin::bind(&address(args.admin_port, "--admin-port")?).await?;
    let secret: [u8; 32] = rand::random();
    let signer = Signer::from_secret(&secret)?;
    let (stop, stopped) = Shutdown::channel();

    let mut service = tokio::spawn(parts::placement(placement.clone(), directory.clone(), stopped.clone()));
    let mut owners = Owners::start(directory.clone(), store)?;
    let (started, handle) = oneshot::channel();
    let door = parts::Door { listen: listen.clone(), secret, placement: placement.clone() };
    let mut gateway = tokio::spawn(parts::gateway(door, directory.clone(), stopped.clone(), started));
    let handle = tokio::select! {
        handle = handle => handle,
        ended = &mut gateway => return ended.context("the gateway panicked")?.and_then(|()| bail!("the gateway ended")),
    };
    let gateway_handle = handle.context("the gateway did not start")?;
    let admin_url = format!("http://{}", admin.local_addr()?);
    let admin = tokio::spawn(admin::serve(admin, Arc::new(gateway_handle.clone()), stopped.wait()));
    let (url, page) = (format!("ws://{listen}/v1/ws"), format!("http://{listen}"));
    let demo = Demo { url, page, gateway: gateway_handle, directory, placement, signer };

    let outcome = tokio::select! {
        () = shutdown.wait() => Ok(()),
        outcome = show(&demo, &admin_url, &mut owners, args.kill_owner_every) => outcome,
        ended = &mut service => ended.context("placement panicked")?.and_then(|()| bail!("placement ended")),
        ended = &mut gateway => ended.context("the gateway panicked")?.and_then(|()| bail!("the gateway ended")),
    };
    // Nobody is left to resend to, so nothing is waited for but the close frames.
    let owners = owners.stop();
    let _ = stop.send(startup::Stop::Gracefully);
    let _ = tokio::time::timeout(STOP_MAX, async { tokio::join!(gateway, service, admin) }).await;
    drop(owners);
    outcome
}

/// Creates the game, prints how to join it, and plays if asked to.
async fn show(demo: &Demo, admin: &str, owners: &mut Owners, kill_every: Option<Span>) -> anyhow::Result<()> {
    let game = SessionId::parse(GAME)?;
    demo.create(&game, GAME_KIND).await?;
    let (white, black) = (demo.token("player-a", &game, "white")?, demo.token("player-b", &game, "black")?);
    println!(
        "holdfast dev: a gateway, placement and {} owners in this process; nothing is kept when it ends.\n\n\
         WebSocket  {url}   (subprotocol holdfast.v1.json)\n\
         admin      {admin}/   (a page for operators; /status /metrics /held /limits)\n\
         game       {GAME}\n\
         white      {white}\n\
         black      {black}\n\n\
         Each seat in a browser:\n\n\
         {page}/#session={GAME}&token={white}\n\n\
         {page}/#session={GAME}&token={black}\n\n\
         To play a move, paste this in another terminal:\n\n\
         cargo run --release -q -- play --url {url} --session {GAME} --token {white} e2e4\n\n\
         Ctrl-C ends it.",
        owners::OWNERS,
        url = demo.url,
        page = demo.page,
    );
    match kill_every {
        Some(every) => chaos::run(demo, owners, every.0).await,
        None => std::future::pending().await,
    }
}

impl Demo {
    /// Creates a session; waits for placement and owners to be ready.
    async fn create(&self, session: &SessionId, kind: &str) -> anyhow::Result<()> {
        let until = Instant::now() + READY_MAX;
        loop {
            match self.try_create(session, kind).await {
                Ok(()) => return Ok(()),
                Err(e) if Instant::now() > until => return Err(e.context(format!("{session} cannot be created"))),
                Err(_) => sleep(READY_EVERY).await,
            }
        }
    }

    async fn try_create(&self, session: &SessionId, kind: &str) -> anyhow::Result<()> {
        let mut client = PlacementServiceClient::connect(format!("http://{}", self.placement)).await?;
        let request =
            CreateSessionRequest { session: session.to_string(), kind: kind.into(), prefer_zone: String::new() };
        let reply = client.create_session(request).await?.into_inner();
        let owned = reply.placement.is_some_and(|p| !p.owner.is_empty());
        if owned { Ok(()) } else { bail!("no owner yet") }
    }

    fn token(&self, sub: &str, session: &SessionId, seat: &str) -> anyhow::Result<String> {
        let sessions = sessions_claim(&[format!("{session}:{seat}")]);
        self.signer.sign(sub, crate::gateway::auth::AUDIENCE, TOKEN_TTL, sessions)
    }
}

/// `port` on loopback, a free one for 0.
fn address(port: u16, option: &str) -> anyhow::Result<String> {
    if port == 0 {
        return free_addr();
    }
    let addr = format!("127.0.0.1:{port}");
    std::net::TcpListener::bind(&addr)
        .with_context(|| format!("{addr} cannot be used; {option} 0 takes a free port"))?;
    Ok(addr)
}
