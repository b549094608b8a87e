//! The decision at the admission point.

use std::time::Duration;

use super::{
    AdmissionConfig, Answer, Ask, Class, Reason, Verdict,
    gcra::{Meter, Pace, Reserved},
    resume::{ResumeError, ResumeToken},
    shares::Lanes,
    slots::{Entry, Slots},
    ticket::{ClientTag, Ticket, TicketError, client_tag},
};
use crate::time::{Mono, Now, Wall};

/// Early asks that cost nothing: a page reloaded, a network that flaps.
const STRIKES_FREE: u8 = 3;
/// Each further one delays admission at the slot by this much ...
const STRIKE_COST: Duration = Duration::from_millis(100);
/// ... up to this: well inside the window of 5 s, well above what asking all the time could gain.
const STRIKES_COST_MAX: Duration = Duration::from_secs(1);
/// A client sent away at its slot comes back after this + U(0, this): longer than the burst, so that the bucket refills.
const AGAIN: Duration = Duration::from_millis(50);
/// A client that comes as it was told, but in a bunch with others, waits in place for up to this: a moment's wait costs
/// nothing, and sending it away costs both sides a connection (measured: 2.6 attempts per client instead of 2.0 with
/// 2,000 a second on two shared cores). So at most R x 0.26 wait.
const HOLD_IN_SLOT: Duration = Duration::from_millis(250);
/// The same for clients of before that come by their rank: at 95 % of R, chance bunches up 55 of 3,000.
const HOLD_BY_RANK: Duration = Duration::from_millis(100);
/// What of the burst a class leaves to those above it, while these have slots ahead.
const KEEP_FOR_RESUMING: f64 = 0.25;
const KEEP_FOR_KNOWN: f64 = 0.5;

/// Decides who is let in. One per process: rates are the process's.
#[derive(Debug)]
pub struct Admission {
    config: AdmissionConfig,
    paces: Paces,
    /// Everybody admitted, at R: what fresh clients have to conform to.
    all: Meter,
    /// Everybody admitted, at the guard: what holds without exception (invariant 21).
    guard: Meter,
    /// What each class is sure of when classes above it contend.
    sure: [Meter; 6],
    lanes: Lanes,
    slots: Slots,
}

#[derive(Clone, Copy, Debug)]
struct Paces {
    fresh: Pace,
    guard: Pace,
    sure: [Pace; 6],
}

/// Who asks, and what it has.
struct Who {
    class: Class,
    /// Whose the slot would be; none for an anonymous client without a ticket.
    tag: Option<ClientTag>,
    /// It showed a resume token: its ticket needs it.
    bound: bool,
    entry: Entry,
    slot: Option<Mono>,
    ticket: Option<TicketError>,
    resume: Option<ResumeError>,
}

impl Admission {
    /// A gate with its burst, and nobody waiting.
    #[must_use]
    pub fn new(config: AdmissionConfig) -> Self {
        Self {
            config,
            paces: Paces::of(&config),
            all: Meter::default(),
            guard: Meter::default(),
            sure: [Meter::default(); 6],
            lanes: Lanes::default(),
            slots: Slots::new(),
        }
    }

    /// What is in force.
    #[must_use]
    pub const fn config(&self) -> &AdmissionConfig {
        &self.config
    }

    /// Takes other limits from now on: no new burst, and slots that were given stay good.
    pub fn configure(&mut self, now: Mono, config: AdmissionConfig) {
        let (old, new) = (self.paces, Paces::of(&config));
        self.all.repace(now, old.fresh, new.fresh);
        self.guard.repace(now, old.guard, new.guard);
        for (i, meter) in self.sure.iter_mut().enumerate() {
            meter.repace(now, old.sure[i], new.sure[i]);
        }
        self.lanes.repace(now, old.fresh, new.fresh);
        (self.config, self.paces) = (config, new);
    }

    /// Decides. `random` is uniform over u64.
    pub fn ask(&mut self, now: Now, ask: &Ask<'_>, random: u64) -> Answer {
        let mut who = self.identify(now, ask);
        let (verdict, reason) = match who.slot {
            Some(slot) if who.entry.is_full() => self.at_full(now, ask, &mut who, (slot, random)),
            Some(slot) => self.at_slot(now, ask, &mut who, (slot, random)),
            None => self.fresh(now, ask, &who, random),
        };
        Answer { verdict, class: who.class, reason, ticket: who.ticket, resume: who.resume }
    }

    /// A sealed ticket for a client that is told its slot in advance, as when this gateway drains: `slot_in` from now.
    #[must_use]
    pub fn ticket(now: Now, slot_in: Duration, client: (&[u8; 16], Class), keys: &super::FleetKeys) -> [u8; 44] {
        let slot = now.wall.after(slot_in);
        Ticket { class: client.1, bound: true, issued: now.wall, slot, tag: client_tag(client.0) }.seal(keys)
    }

    /// How far the schedule of each class reaches ahead, for the dashboard; zero if a client of it would be let in.
    #[must_use]
    pub fn backlog(&self, now: Mono) -> [(Class, Duration); 6] {
        Class::ALL.map(|c| (c, self.lanes.next(now, c, self.paces.fresh).since(now)))
    }

    fn identify(&self, now: Now, ask: &Ask<'_>) -> Who {
        let resume = ask.resume.map(|bytes| ResumeToken::open(ask.keys, now.wall, bytes));
        let token = resume.and_then(Result::ok);
        let own = token.map(|t| client_tag(&t.client));
        let shown = ask.ticket.map(|bytes| match Ticket::open(ask.keys, bytes) {
            Ok(t) if t.bound && own != Some(t.tag) => Err(TicketError::OtherIdentity),
            other => other,
        });
        let ticket = shown.and_then(Result::ok);
        let class = ticket.map(|t| t.class).or(token.map(|t| t.class)).unwrap_or(Class::Anonymous);
        let tag = ticket.map(|t| t.tag).or(own);
        let entry = tag.map(|t| self.slots.find(now.mono, &t, self.config.late)).unwrap_or_default();
        let mut who = Who {
            class,
            tag,
            bound: ticket.map_or(own.is_some(), |t| t.bound),
            entry,
            slot: entry.is_pending().then(|| entry.slot()),
            ticket: shown.and_then(Result::err),
            resume: resume.and_then(Result::err),
        };
        if let Some(t) = ticket {
            self.claim(now, &mut who, mono_of(now, t.slot));
        }
        who.slot = who.slot.filter(|s| s.after(self.config.late) >= now.mono);
        who
    }

    /// What an authentic ticket of this client adds. What this gate told it last goes first.
    fn claim(&self, now: Now, who: &mut Who, slot: Mono) {
        if slot <= who.entry.honoured() {
            who.ticket = Some(TicketError::Replayed);
        } else if slot.after(self.config.late) < now.mono {
            who.ticket = Some(TicketError::Expired);
        } else if now.mono.after(self.config.early) < slot {
            who.ticket = Some(TicketError::Early);
            who.slot = who.slot.or(Some(slot));
        } else if who.slot.is_none() || who.entry.is_full() {
            who.slot = Some(slot);
            who.entry = who.entry.with_slot(slot, false);
        }
    }

    fn at_slot(&mut self, now: Now, ask: &Ask<'_>, who: &mut Who, by: (Mono, u64)) -> (Verdict, Reason) {
        let (slot, random) = by;
        if now.mono.after(self.config.early) < slot {
            who.entry = who.entry.with_slot(slot, false).struck();
            self.remember(now.mono, who.entry);
            return (self.slot(now, ask, who, (slot, slot)), Reason::Early);
        }
        let strikes = who.entry.strikes().saturating_sub(STRIKES_FREE);
        let cost = (STRIKE_COST * u32::from(strikes)).min(STRIKES_COST_MAX);
        if strikes > 0 && now.mono < slot.after(cost) {
            return (self.slot(now, ask, who, (slot, slot.after(cost))), Reason::Hammering);
        }
        let hold = self.guard.next(now.mono, self.paces.guard).since(now.mono);
        let within = HOLD_IN_SLOT.mul_f64(1.0 - self.keep(now.mono, who.class));
        if self.passes(now.mono, who.class) || hold <= within {
            self.count(now.mono, who.class);
            self.remember(now.mono, who.entry.spent(slot));
            let slot_lag = Some(now.mono.since(slot));
            return (Verdict::Admit { class: who.class, slot_lag, hold }, Reason::InSlot);
        }
        let again = now.mono.after(AGAIN + scaled(AGAIN, random));
        let next = match self.lanes.reserve(now.mono, Class::Ticket, self.by(), self.config.horizon) {
            Reserved::Now => again,
            Reserved::At(at) => whole_ms(now, at.max(again)),
            Reserved::Beyond => return self.full(now, who, random),
        };
        let next = whole_ms(now, next);
        who.entry = who.entry.with_slot(next, false);
        self.remember(now.mono, who.entry);
        (self.slot(now, ask, who, (next, next)), Reason::Guard)
    }

    /// It was told when to ask again, and has no slot.
    fn at_full(&mut self, now: Now, ask: &Ask<'_>, who: &mut Who, by: (Mono, u64)) -> (Verdict, Reason) {
        let (until, random) = by;
        if now.mono.after(self.config.early) < until {
            return (Verdict::Full { wait: until.since(now.mono) }, Reason::Full);
        }
        who.entry = who.entry.with_slot(Mono(0), false);
        self.fresh(now, ask, who, random)
    }

    fn fresh(&mut self, now: Now, ask: &Ask<'_>, who: &Who, random: u64) -> (Verdict, Reason) {
        let (at, class) = (now.mono, who.class);
        let room = self.all.conforms(at, self.paces.fresh, 0.0) && self.passes(at, class);
        let next = self.lanes.next(at, class, self.paces.fresh);
        if room && next <= at {
            let _ = self.lanes.reserve(at, class, self.by(), Duration::ZERO);
            self.count(at, class);
            return (admit(class), Reason::Free);
        }
        if self.all.is_idle(at) && !who.entry.is_pending() && self.passes(at, class) {
            self.count(at, class);
            return (admit(class), Reason::Unclaimed);
        }
        if let Some(hold) = self.by_rank(at, who) {
            self.count(at, class);
            return (Verdict::Admit { class, slot_lag: None, hold }, Reason::Free);
        }
        let slot = match self.lanes.reserve(at, class, self.by(), self.config.horizon) {
            Reserved::Now => self.all.next(at, self.paces.fresh),
            Reserved::At(slot) => slot,
            Reserved::Beyond => return self.full(now, who, random),
        };
        let slot = whole_ms(now, slot);
        if who.tag.is_some() {
            self.remember(at, who.entry.with_slot(slot, false));
        }
        let tagged = Who { tag: Some(who.tag.unwrap_or_else(|| random_tag(random))), ..*who };
        (self.slot(now, ask, &tagged, (slot, slot)), Reason::Queued)
    }

    /// How long a client of before, without a slot, waits in place; `None` = too long. Takes its place in the schedule.
    fn by_rank(&mut self, at: Mono, who: &Who) -> Option<Duration> {
        if who.ticket.is_some() || matches!(who.class, Class::Ticket | Class::Anonymous) {
            return None;
        }
        let guard = self.guard.next(at, self.paces.guard);
        let within = HOLD_BY_RANK.mul_f64(1.0 - self.keep(at, who.class));
        if guard.since(at) > within {
            return None;
        }
        match self.lanes.reserve(at, who.class, self.by(), within) {
            Reserved::Now => Some(guard.since(at)),
            Reserved::At(slot) => Some(slot.max(guard).since(at)),
            Reserved::Beyond => None,
        }
    }

    fn full(&mut self, now: Now, who: &Who, random: u64) -> (Verdict, Reason) {
        let wait = self.config.horizon + scaled(self.config.plain_spread, random);
        if who.tag.is_some() {
            self.remember(now.mono, who.entry.with_slot(now.mono.after(wait), true));
        }
        (Verdict::Full { wait }, Reason::Full)
    }

    /// The guard, and what lower classes leave to higher ones.
    fn passes(&self, now: Mono, class: Class) -> bool {
        self.guard.conforms(now, self.paces.guard, self.keep(now, class))
    }

    /// What of the burst a class has to leave to others now, 0 to 1.
    fn keep(&self, now: Mono, class: Class) -> f64 {
        let keep = match class {
            Class::Ticket | Class::Game | Class::Meeting | Class::Document => return 0.0,
            Class::Known => KEEP_FOR_RESUMING,
            Class::Anonymous => KEEP_FOR_KNOWN,
        };
        let sure = self.sure[class as usize].conforms(now, self.paces.sure[class as usize], 0.0);
        if sure || !self.lanes.is_contended_above(now, class, self.paces.fresh) { 0.0 } else { keep }
    }

    fn count(&mut self, now: Mono, class: Class) {
        self.all.take(now, self.paces.fresh);
        self.guard.take(now, self.paces.guard);
        let (sure, pace) = (&mut self.sure[class as usize], self.paces.sure[class as usize]);
        if sure.conforms(now, pace, 0.0) {
            sure.take(now, pace);
        }
        if class == Class::Anonymous {
            self.lanes.saw_anonymous(now);
        }
    }

    fn remember(&mut self, now: Mono, entry: Entry) {
        self.slots.put(now, self.config.late, entry);
    }

    /// The answer: `by` is the slot that is sealed, and the moment the client is told to come.
    fn slot(&self, now: Now, ask: &Ask<'_>, who: &Who, by: (Mono, Mono)) -> Verdict {
        let slot = wall_of(now, by.0);
        let tag = who.tag.unwrap_or_default();
        let ticket = Ticket { class: who.class, bound: who.bound, issued: now.wall, slot, tag }.seal(ask.keys);
        Verdict::Slot { class: who.class, wait: by.1.since(now.mono), ticket }
    }

    const fn by(&self) -> (&super::Shares, Pace) {
        (&self.config.shares, self.paces.fresh)
    }
}

impl Paces {
    fn of(config: &AdmissionConfig) -> Self {
        let r = f64::from(config.rate_per_s);
        let guard = config.guard.max(1.0);
        Self {
            fresh: Pace::new(r, config.burst),
            guard: Pace::strict(r * guard, config.burst, guard),
            sure: Class::ALL.map(|c| Pace::new(r * config.shares.of(c), config.burst)),
        }
    }
}

const fn admit(class: Class) -> Verdict {
    Verdict::Admit { class, slot_lag: None, hold: Duration::ZERO }
}

/// The moment on this process's clock of a moment of the wall.
fn mono_of(now: Now, wall: Wall) -> Mono {
    if wall >= now.wall {
        Mono(now.mono.0.saturating_add(wall.0 - now.wall.0))
    } else {
        Mono(now.mono.0.saturating_sub(now.wall.0 - wall.0))
    }
}

fn wall_of(now: Now, at: Mono) -> Wall {
    if at >= now.mono {
        Wall(now.wall.0.saturating_add(at.0 - now.mono.0))
    } else {
        Wall(now.wall.0.saturating_sub(now.mono.0 - at.0))
    }
}

/// The first moment from `at` that a ticket can say: a slot is the same in the table and in the ticket.
fn whole_ms(now: Now, at: Mono) -> Mono {
    mono_of(now, Wall(wall_of(now, at).0.div_ceil(1000) * 1000))
}

/// U(0, d).
fn scaled(d: Duration, random: u64) -> Duration {
    let us = (u128::from(random) * d.as_micros()) >> 64;
    Duration::from_micros(u64::try_from(us).unwrap_or(u64::MAX))
}

/// The tag of an anonymous client: splitmix64 over one draw; it only has to be new.
fn random_tag(random: u64) -> ClientTag {
    let mix = |z: u64| {
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut tag = [0; 12];
    tag[..8].copy_from_slice(&mix(random).to_be_bytes());
    tag[8..].copy_from_slice(&mix(random.wrapping_add(0x9e37_79b9_7f4a_7c15)).to_be_bytes()[..4]);
    tag
}
