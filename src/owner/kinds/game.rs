//! A chess game between the seats `white` and `black`.
//!
//! ```text
//! playing --move--> playing | ended(mate, stalemate, repetition, fifty, material, length)
//!         --resign--> ended(resign)      --draw offer, accept--> ended(agreement)
//!         --time-----> ended(flag): a move that arrives too late, a deadline claim that stands, the owner's own backstop
//! ```
//! Time is charged from stamps only: arrival of the move less delivery of the opponent's, both by one gateway process. A
//! move without such a pair (first move, no delivery seen here) is charged 0, so no outage can cost a player anything.

use bytes::Bytes;
use holdfast_core::{
    proto::{Content, HeldOp, Stamp, gateway_msg::Origin, record::Entry, record::Header},
    record::{App, Deadline, Draft, OpView, Reject, STAMP_DELIVERY, URGENT},
    time::{Now, Wall},
};

use super::{
    board::{Played, Position},
    clock::{Clock, Control, SECOND_US, rtt_us},
    code,
    game_events::{DrawWord, Event, Facts, Op, Outcome, Saved, Shown, Sides, read_op},
    shown,
};

/// The seats; their index is the side.
pub const SEATS: [&str; 2] = ["white", "black"];
/// How long a player may be unreachable before the owner flags by its own clock (design 5.4).
const ABSENCE_GRACE_US: u64 = 10 * SECOND_US;

/// State of a game.
#[derive(Debug)]
pub struct Game {
    control: Control,
    position: Position,
    clock: Clock,
    /// The newest move's version and commit time; zero before the first.
    last: Pos,
    /// Side whose draw offer stands.
    offer: Option<usize>,
    outcome: Option<Outcome>,
    claim: Claim,
}

#[derive(Clone, Copy, Debug, Default)]
struct Pos {
    ver: u64,
    at_us: u64,
}

/// The newest claim of this session by an owner: not part of the state, only the backstop and the facts need it.
#[derive(Clone, Copy, Debug, Default)]
struct Claim {
    at_us: u64,
    outage_us: u64,
}

impl Game {
    /// A game about to start.
    #[must_use]
    pub fn new(control: Control) -> Self {
        Self {
            control,
            position: Position::default(),
            clock: Clock::new(control),
            last: Pos::default(),
            offer: None,
            outcome: None,
            claim: Claim::default(),
        }
    }

    /// Time from the delivery of the opponent's move to the arrival of `stamp`'s op; `None` without an estimate.
    fn elapsed_us(&self, stamp: &Stamp) -> Option<u64> {
        let paired = self.last.ver > 0 && stamp.sent_ver == self.last.ver && stamp.sent_at_us > 0;
        paired.then(|| stamp.arrived_at_us.saturating_sub(stamp.sent_at_us))
    }

    fn decide_move(&self, side: usize, uci: &str, stamp: &Stamp) -> Result<Vec<Draft>, Reject> {
        if self.position.side() != side {
            return Err(Reject::app(code::NOT_YOUR_TURN, format!("move: {} is to move", SEATS[1 - side])));
        }
        let Some(played) = self.position.preview(uci) else {
            let detail = format!("move: {} is not legal in {}", shown(uci), self.position.fen());
            return Err(Reject::app(code::ILLEGAL_MOVE, detail));
        };
        let elapsed_us = self.elapsed_us(stamp);
        let charge = self.clock.charge(side, elapsed_us.unwrap_or(0), rtt_us(stamp));
        let facts = Facts {
            charged_us: charge.charged_us,
            credited_us: charge.credited_us,
            lag_us: charge.lag_us,
            source: source(stamp),
            quota_us: charge.quota_us,
            measured: elapsed_us.is_some(),
            outage_us: self.claim.outage_us,
        };
        let Some(left_us) = self.clock.after(side, &charge) else {
            return Ok(vec![self.flag(side, &facts.to_json())]);
        };
        let mut sides = self.sides();
        sides.set(side, left_us);
        let Played { uci, san, fen, end } = played;
        let moved = Event::Move {
            uci,
            san,
            fen,
            clock_us: sides,
            charged_us: charge.charged_us,
            credited_us: charge.credited_us,
        };
        let mut drafts = vec![Draft { flags: STAMP_DELIVERY | URGENT, ..draft(side, &moved, facts.to_json()) }];
        if let Some(end) = end {
            let winner = (end.word() == "mate").then_some(side);
            drafts.push(draft(side, &ended(end.word(), winner), String::new()));
        }
        Ok(drafts)
    }

    fn decide_draw(&self, side: usize, word: DrawWord) -> Result<Vec<Draft>, Reject> {
        let agreed = self.offer == Some(1 - side);
        match word {
            _ if agreed => Ok(vec![draft(side, &ended("agreement", None), String::new())]),
            DrawWord::Accept => Err(Reject::app(code::DRAW, "draw: the opponent has not offered one")),
            DrawWord::Offer if self.offer.is_some() => Err(Reject::app(code::DRAW, "draw: your offer stands already")),
            DrawWord::Offer => {
                let offer = Event::Draw { draw: DrawWord::Offer, by: SEATS[side].to_owned() };
                Ok(vec![draft(side, &offer, String::new())])
            }
        }
    }

    /// A gateway's claim that the side to move let its time pass (lane `!deadline`, seq = the version it waited after).
    fn decide_claim(&self, op: &OpView<'_>) -> Result<Vec<Draft>, Reject> {
        let side = self.position.side();
        let current = op.held.op.as_ref().is_some_and(|id| id.seq == self.last.ver) && self.last.ver > 0;
        let elapsed_us = self.elapsed_us(op.stamp).filter(|_| current);
        match elapsed_us {
            Some(elapsed_us) if self.clock.flag_stands(side, elapsed_us) => Ok(vec![self.flag(side, "")]),
            _ => Err(Reject::app(code::NO_FLAG, "flag: the time of the side to move has not passed")),
        }
    }

    fn flag(&self, side: usize, facts: &str) -> Draft {
        // a bare king cannot win
        let winner = (!self.position.is_bare(1 - side)).then_some(1 - side);
        draft(side, &ended("flag", winner), facts.to_owned())
    }

    fn sides(&self) -> Sides {
        Sides { white: self.clock.remaining_us(0), black: self.clock.remaining_us(1) }
    }

    fn take(&mut self, event: Event, entry: &Entry) -> Option<()> {
        let side = self.position.side();
        match event {
            Event::Move { uci, clock_us, .. } => {
                self.position.play(&uci).then_some(())?;
                let quota_us = serde_json::from_str(&entry.facts).ok().map(|facts: Facts| facts.quota_us);
                self.clock.set(side, clock_us.get(side), quota_us);
                self.last = Pos { ver: entry.ver, at_us: entry.at_us };
                self.claim.outage_us = 0;
                // an offer is declined by a move of the other side
                self.offer = self.offer.filter(|offerer| *offerer == side);
            }
            Event::Draw { by, .. } => self.offer = SEATS.iter().position(|seat| *seat == by),
            Event::End(outcome) => {
                if outcome.end == "flag" {
                    self.clock.set(side, 0, None);
                }
                self.outcome = Some(outcome);
            }
        }
        Some(())
    }
}

impl App for Game {
    fn decide(&mut self, op: &OpView<'_>, _now: Now) -> Result<Vec<Draft>, Reject> {
        if let Some(outcome) = &self.outcome {
            return Err(Reject::app(code::GAME_OVER, format!("the game has ended: {}", outcome.end)));
        }
        if op.origin == Origin::Deadline as i32 {
            return self.decide_claim(op);
        }
        let side = seat(op.held)?;
        match read_op(op.held)? {
            Op::Move(uci) => self.decide_move(side, &uci, op.stamp),
            Op::Resign => Ok(vec![draft(side, &ended("resign", Some(1 - side)), String::new())]),
            Op::Draw(word) => self.decide_draw(side, word),
        }
    }

    fn apply(&mut self, entry: &Entry) {
        let taken = serde_json::from_slice(&entry.payload).ok().and_then(|event| self.take(event, entry));
        if taken.is_none() {
            tracing::error!(ver = entry.ver, "recorded event of a game cannot be read");
        }
    }

    fn snapshot(&self) -> (Content, Bytes) {
        let shown = Shown {
            fen: self.position.fen(),
            moves: self.position.moves(),
            clock_us: self.sides(),
            draw: self.offer.map(|side| SEATS[side]),
            result: self.outcome.as_ref(),
        };
        (Content::Json, serde_json::to_vec(&shown).unwrap_or_default().into())
    }

    fn checkpoint(&self) -> Bytes {
        let saved = Saved {
            control: self.control,
            moves: self.position.moves().to_vec(),
            clock: self.clock.clone(),
            last_ver: self.last.ver,
            last_at_us: self.last.at_us,
            offer: self.offer,
            outcome: self.outcome.clone(),
        };
        serde_json::to_vec(&saved).unwrap_or_default().into()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        let mut game = Self { claim: self.claim, ..Self::new(self.control) };
        if !state.is_empty() {
            let saved: Saved = serde_json::from_slice(state).map_err(|e| format!("game: {e}"))?;
            if let Some(uci) = saved.moves.iter().find(|uci| !game.position.play(uci)) {
                return Err(format!("game: recorded move {} is not legal in {}", shown(uci), game.position.fen()));
            }
            game.control = saved.control;
            game.clock = saved.clock;
            game.last = Pos { ver: saved.last_ver, at_us: saved.last_at_us };
            game.offer = saved.offer.filter(|side| *side < SEATS.len());
            game.outcome = saved.outcome;
        }
        *self = game;
        Ok(())
    }

    fn handle_claimed(&mut self, header: &Header, now: Now) {
        self.claim = Claim { at_us: now.wall.0, outage_us: self.claim.outage_us + header.outage_us };
    }

    fn poll_timeout(&self) -> Option<Wall> {
        self.deadline().map(|deadline| Wall(deadline.at_us))
    }

    fn handle_timeout(&mut self, now: Now) -> Vec<Draft> {
        let due = self.deadline().is_some_and(|deadline| now.wall.0 >= deadline.at_us);
        if due { vec![self.flag(self.position.side(), "")] } else { Vec::new() }
    }

    fn deadline(&self) -> Option<Deadline> {
        // before the first move nobody's time runs
        if self.outcome.is_some() || self.last.ver == 0 {
            return None;
        }
        let side = self.position.side();
        let budget_us = self.clock.budget_us(side);
        // a takeover starts the wait anew: unowned time is nobody's
        let from_us = self.last.at_us.max(self.claim.at_us);
        Some(Deadline {
            participant: SEATS[side].to_owned(),
            after_ver: self.last.ver,
            budget_us,
            at_us: from_us + ABSENCE_GRACE_US + budget_us,
        })
    }

    fn stamped(&self) -> bool {
        true
    }
}

fn seat(held: &HeldOp) -> Result<usize, Reject> {
    SEATS.iter().position(|seat| *seat == held.participant).ok_or_else(|| {
        let detail = format!("participant: {:?}; white or black is required", shown(&held.participant));
        Reject::app(code::NOT_YOUR_SEAT, detail)
    })
}

fn source(stamp: &Stamp) -> String {
    stamp.rtt_source().as_str_name().trim_start_matches("RTT_").to_ascii_lowercase()
}

fn ended(reason: &str, winner: Option<usize>) -> Event {
    Event::End(Outcome { end: reason.to_owned(), winner: winner.map(|side| SEATS[side].to_owned()) })
}

fn draft(side: usize, event: &Event, facts: String) -> Draft {
    let payload = serde_json::to_vec(event).unwrap_or_default().into();
    Draft { payload, content: Content::Json, actor: SEATS[side].to_owned(), facts, ..Draft::default() }
}
