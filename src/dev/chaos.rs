//! `--kill-owner-every`: two players play on while the owner of their game is killed, again and again; each kill is told in
//! the order in which it happens: moves held, owner lost, epoch up, moves resent, resumed.

use std::time::{Duration, Instant};

use cozy_chess::Color;
use holdfast_core::{id::SessionId, proto::Placement};
use prost::Message as _;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{MissedTickBehavior, interval, interval_at, sleep, timeout},
};

use super::{
    Demo,
    owners::Owners,
    players::{Beat, Player},
};
use crate::{cli::client::Seat, placement::keys};

/// How often the gateway and the directory are looked at after a kill.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Longer than any lease plus guard (7 s) and the hold TTL.
const RESUME_MAX: Duration = Duration::from_secs(20);
/// A killed owner comes back after this.
const BACK_AFTER: Duration = Duration::from_secs(2);
/// Echoes waiting to be counted: two players make 8 a second.
const BEATS: usize = 64;
/// Between two lines that say the game goes on.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// The built-in game and what was seen of it.
struct Table<'a> {
    demo: &'a Demo,
    begin: Instant,
    session: SessionId,
    games: u32,
    moves: u64,
    players: JoinSet<()>,
    beats: mpsc::Receiver<Beat>,
    report: mpsc::Sender<Beat>,
    newest: Option<Beat>,
}

/// Plays, kills and tells until cancelled.
///
/// # Errors
/// A game cannot be created, or an owner cannot be started again.
pub async fn run(demo: &Demo, owners: &mut Owners, every: Duration) -> anyhow::Result<()> {
    let (report, beats) = mpsc::channel(BEATS);
    let mut table = Table {
        demo,
        begin: Instant::now(),
        session: SessionId::parse("players-0")?,
        games: 0,
        moves: 0,
        players: JoinSet::new(),
        beats,
        report,
        newest: None,
    };
    let mut kill = interval_at(tokio::time::Instant::now() + every, every);
    kill.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut tell = interval(TELL_EVERY);
    loop {
        if table.players.is_empty() {
            table.new_game().await?;
        }
        tokio::select! {
            Some(beat) = table.beats.recv() => table.count(beat),
            Some(_) = table.players.join_next() => {}
            _ = tell.tick() => table.progress(),
            _ = kill.tick() => table.kill_one(owners).await?,
        }
    }
}

impl Table<'_> {
    async fn new_game(&mut self) -> anyhow::Result<()> {
        self.games += 1;
        self.session = SessionId::parse(&format!("players-{}", self.games))?;
        self.demo.create(&self.session, "game:300+3").await?;
        self.say(&format!("two players begin the game {}", self.session));
        for (name, color) in [("white", Color::White), ("black", Color::Black)] {
            let token = self.demo.token(&format!("player-{name}"), &self.session, name)?;
            let seat = Seat::new(&self.demo.url, &token, self.session.as_str());
            self.players.spawn(Player::new(seat, color, self.report.clone()).run());
        }
        Ok(())
    }

    fn count(&mut self, beat: Beat) {
        self.moves += 1;
        self.newest = Some(beat);
    }

    fn progress(&self) {
        if let Some(b) = &self.newest {
            let ms = b.echoed.duration_since(b.sent).as_secs_f64() * 1e3;
            self.say(&format!(
                "{} moves acknowledged; the last: {} {} as version {} of {}, epoch {}, {ms:.1} ms after it was sent",
                self.moves, b.seat, b.played, b.ver, self.session, b.epoch
            ));
        }
    }

    async fn kill_one(&mut self, owners: &mut Owners) -> anyhow::Result<()> {
        let Some(before) = self.placement().await else { return Ok(()) };
        if before.owner.is_empty() || !owners.kill(&before.owner) {
            self.say("nobody to kill: the game has no owner now");
            return Ok(());
        }
        let killed = Instant::now();
        self.say(&format!("killed {}, which owned {} in epoch {}", before.owner, self.session, before.epoch));
        if timeout(RESUME_MAX, self.watch(&before, killed)).await.is_err() {
            self.say(&format!("NOT resumed within {} s", RESUME_MAX.as_secs()));
        }
        sleep(BACK_AFTER.saturating_sub(killed.elapsed())).await;
        owners.restart(&before.owner)?;
        self.say(&format!("{} is back, as a new life of the node", before.owner));
        Ok(())
    }

    /// Tells what happens from the kill to the first echo in a later epoch.
    async fn watch(&mut self, before: &Placement, killed: Instant) {
        let resent_before = self.resent();
        let (mut held, mut moved) = (0, false);
        let mut look = interval(LOOK_EVERY);
        loop {
            tokio::select! {
                Some(beat) = self.beats.recv() => {
                    let late = beat.epoch > before.epoch;
                    let line = format!("  {} {} acknowledged in epoch {}", beat.seat, beat.played, beat.epoch);
                    let waited = beat.echoed.duration_since(beat.sent).as_millis();
                    let resumed = beat.echoed.duration_since(killed).as_millis();
                    self.count(beat);
                    if late {
                        self.tell_moved(before, &mut moved).await;
                        let resent = self.resent() - resent_before;
                        self.say(&format!("  {held} sent on to the new owner, {resent} of them for the second time"));
                        self.say(&format!("{line}, {waited} ms after it was sent"));
                        return self.say(&format!("  resumed in {resumed} ms"));
                    }
                }
                _ = look.tick() => {
                    let all = self.demo.gateway.held(super::HELD_LOOK);
                    let now = all.iter().filter(|h| h.session == self.session).count();
                    if now > held {
                        held = now;
                        self.say(&format!("  {held} held by the gateway"));
                    }
                    self.tell_moved(before, &mut moved).await;
                }
            }
        }
    }

    /// Says once that the directory has moved the game on.
    async fn tell_moved(&self, before: &Placement, moved: &mut bool) {
        if !*moved
            && let Some(now) = self.placement().await
            && now.epoch > before.epoch
        {
            *moved = true;
            let to = if now.owner.is_empty() { "nobody" } else { &now.owner };
            self.say(&format!("  {} lost: epoch {} -> {}, to {to}", before.owner, before.epoch, now.epoch));
        }
    }

    /// Ops the gateway has ever sent again.
    fn resent(&self) -> u64 {
        let text = self.demo.gateway.metrics().encode();
        let line = text.lines().find_map(|l| l.strip_prefix("holdfast_ops_resent_total "));
        line.and_then(|n| n.parse().ok()).unwrap_or(0)
    }

    async fn placement(&self) -> Option<Placement> {
        let (item, _) = self.demo.directory.get(&keys::session(&self.session)).await.ok()?;
        Placement::decode(item?.value).ok()
    }

    fn say(&self, text: &str) {
        println!("[{:7.2} s] {text}", self.begin.elapsed().as_secs_f64());
    }
}
