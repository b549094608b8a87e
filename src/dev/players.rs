//! The two built-in players of `holdfast dev`: clients of the gateway like any other, over the WebSocket. They play legal
//! moves at random, keep an unsettled move through any loss of the connection, and report every echo.

use std::time::{Duration, Instant};

use cozy_chess::{Board, Color, util::display_uci_move};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::sleep};

use crate::cli::client::{Client, Seat};

/// Between the other's move and one's own: shorter than any outage (the probe alone takes 100 ms), within 5 ops a second.
const PACE: Duration = Duration::from_millis(125);
/// After a lost connection. A gateway tells real clients a better wait (design 9.2).
const RECONNECT: Duration = Duration::from_millis(200);
/// Longest wait for a refused move's next try.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// One move came back, and so is in the record.
#[derive(Clone, Debug)]
pub struct Beat {
    /// `white` or `black`.
    pub seat: &'static str,
    /// The move.
    pub played: String,
    /// Epoch it came back in.
    pub epoch: u64,
    /// Its version.
    pub ver: u64,
    /// When it was first sent.
    pub sent: Instant,
    /// When it came back.
    pub echoed: Instant,
}

/// A move on its way.
struct Pending {
    seq: u64,
    attempt: u32,
    played: String,
    sent: Instant,
    /// When it is to be sent again, after a retryable refusal.
    again: Option<Instant>,
}

/// One side of the board.
pub struct Player {
    seat: Seat,
    name: &'static str,
    color: Color,
    beats: mpsc::Sender<Beat>,
    epoch: u64,
    ver: u64,
    decided: u64,
    fen: Option<String>,
    pending: Option<Pending>,
    over: bool,
}

impl Player {
    /// A player who has not sat down yet.
    #[must_use]
    pub fn new(seat: Seat, color: Color, beats: mpsc::Sender<Beat>) -> Self {
        let name = if color == Color::White { "white" } else { "black" };
        Self { seat, name, color, beats, epoch: 0, ver: 0, decided: 0, fen: None, pending: None, over: false }
    }

    /// Plays until the game is over.
    pub async fn run(mut self) {
        while !self.over {
            if let Err(e) = self.sit().await {
                tracing::debug!("{}: {e:#}", self.name);
                sleep(RECONNECT).await;
            }
        }
    }

    async fn sit(&mut self) -> anyhow::Result<()> {
        let mut client = self.seat.connect((self.epoch, self.ver)).await?;
        self.decided = client.attached["lane_seq"].as_u64().unwrap_or(0);
        self.settled_by(self.decided);
        if let Some(p) = &mut self.pending {
            p.attempt += 1;
            client.op(p.seq, p.attempt, &json!({"move": p.played})).await?;
        }
        while !self.over {
            let due = self.due();
            tokio::select! {
                frame = client.next() => self.heard(&frame?).await,
                () = sleep(due.unwrap_or_default()), if due.is_some() => self.act(&mut client).await?,
            }
        }
        Ok(())
    }

    /// How long until there is something to send; `None` = nothing.
    fn due(&self) -> Option<Duration> {
        match &self.pending {
            Some(p) => p.again.map(|at| at.saturating_duration_since(Instant::now())),
            None => self.board().filter(|b| b.side_to_move() == self.color).map(|_| PACE),
        }
    }

    fn board(&self) -> Option<Board> {
        Board::from_fen(self.fen.as_deref()?, false).ok()
    }

    async fn act(&mut self, client: &mut Client) -> anyhow::Result<()> {
        if let Some(p) = &mut self.pending {
            (p.attempt, p.again) = (p.attempt + 1, None);
            return client.op(p.seq, p.attempt, &json!({"move": p.played})).await;
        }
        let Some(board) = self.board() else { return Ok(()) };
        let mut moves = Vec::new();
        board.generate_moves(|m| {
            moves.extend(m);
            false
        });
        if moves.is_empty() {
            return Ok(());
        }
        let played = display_uci_move(&board, moves[rand::random_range(0..moves.len())]).to_string();
        let seq = self.decided + 1;
        client.op(seq, 1, &json!({"move": played})).await?;
        self.pending = Some(Pending { seq, attempt: 1, played, sent: Instant::now(), again: None });
        Ok(())
    }

    async fn heard(&mut self, frame: &Value) {
        let number = |key: &str| frame[key].as_u64().unwrap_or(0);
        match frame["t"].as_str() {
            Some("event") => {
                self.epoch = self.epoch.max(number("epoch"));
                self.ver = self.ver.max(frame["to"].as_u64().unwrap_or(number("ver")));
                self.learn(&frame["data"]);
                self.echo(frame).await;
            }
            Some("snapshot") => {
                self.epoch = self.epoch.max(number("epoch"));
                self.ver = number("ver");
                self.learn(&frame["data"]);
                self.settled_by(number("lane_seq"));
            }
            Some("status") => self.epoch = self.epoch.max(number("epoch")),
            Some("ack") => self.echo(frame).await,
            Some("nack") => self.refused(frame),
            _ => {}
        }
    }

    fn learn(&mut self, data: &Value) {
        if let Some(fen) = data["fen"].as_str() {
            self.fen = Some(fen.into());
        }
        self.over |= data["end"].is_string() || data["result"]["end"].is_string();
    }

    async fn echo(&mut self, frame: &Value) {
        let Some(p) = self.pending.take_if(|p| frame["op"].as_u64() == Some(p.seq)) else { return };
        self.decided = self.decided.max(p.seq);
        let beat = Beat {
            seat: self.name,
            played: p.played,
            epoch: frame["epoch"].as_u64().unwrap_or(self.epoch),
            ver: frame["ver"].as_u64().unwrap_or(self.ver),
            sent: p.sent,
            echoed: Instant::now(),
        };
        // The receiver is gone when the process stops.
        let _ = self.beats.send(beat).await;
    }

    /// Every op up to `seq` of this lane is decided.
    fn settled_by(&mut self, seq: u64) {
        self.decided = self.decided.max(seq);
        self.pending.take_if(|p| p.seq <= seq);
    }

    fn refused(&mut self, frame: &Value) {
        let Some(p) = self.pending.as_mut().filter(|p| frame["op"].as_u64() == Some(p.seq)) else { return };
        let again = matches!(
            frame["code"].as_str(),
            Some("STORE_UNAVAILABLE" | "OVERLOADED" | "NO_OWNER" | "GAP" | "TOO_MANY_INFLIGHT" | "HOLD_EXPIRED")
        );
        if again {
            let wait = Duration::from_millis(frame["retry_after_ms"].as_u64().unwrap_or(0).max(50));
            p.again = Some(Instant::now() + wait.min(RETRY_MAX));
        } else {
            tracing::warn!("{}: {} was refused: {frame}", self.name, p.played);
            let seq = p.seq;
            self.settled_by(seq);
        }
    }
}
