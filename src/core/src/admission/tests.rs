//! The rules of the gate, one test each.

use std::time::Duration;

use super::*;
use crate::time::{Mono, Now, Wall};

const S: u64 = 1_000_000;
const WALL: u64 = 1_700_000_000_000_000;

/// A gate of 1,000 a second with 20 ms of burst, and the keys of its fleet.
struct Bench {
    gate: Admission,
    keys: FleetKeys,
    draws: u64,
}

fn keys(id: u8) -> FleetKeys {
    FleetKeys::new(Key::new(id, &[id; 32]), vec![])
}

fn config(rate_per_s: u32) -> AdmissionConfig {
    AdmissionConfig { rate_per_s, ..AdmissionConfig::default() }
}

fn bench() -> Bench {
    Bench { gate: Admission::new(config(1000)), keys: keys(1), draws: 0 }
}

fn at(us: u64) -> Now {
    Now { mono: Mono(100 * S + us), wall: Wall(WALL + us) }
}

fn ms(n: u64) -> u64 {
    n * 1000
}

impl Bench {
    fn resume(&self, client: u32, class: Class) -> Vec<u8> {
        let mut id = [7; 16];
        // Tags are MACs: spread over the table as those are.
        id[..8].copy_from_slice(&u64::from(client).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        let token = ResumeToken {
            client: id,
            class,
            gateway: [0; 8],
            srtt_us: 0,
            rtt_bound_us: 0,
            issued: Wall(WALL - 60_000_000),
        };
        token.seal(&self.keys).to_vec()
    }

    fn ask(&mut self, now: Now, ticket: Option<&[u8]>, resume: Option<&[u8]>) -> Answer {
        self.draws = self.draws.wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.gate.ask(now, &Ask { ticket, resume, keys: &self.keys }, self.draws)
    }

    /// Takes what passes at once.
    fn fill(&mut self, now: Now) -> usize {
        (0..100_000).take_while(|_| matches!(self.ask(now, None, None).verdict, Verdict::Admit { .. })).count()
    }

    /// A client of a game with a slot further ahead than asking takes: its wait, its ticket and its resume token.
    fn told(&mut self, client: u32, now: Now) -> (Duration, Vec<u8>, Vec<u8>) {
        self.fill(now);
        let resume = self.resume(client, Class::Game);
        for other in 1_000_000..1_000_600 {
            let token = self.resume(other, Class::Game);
            self.ask(now, None, Some(&token));
        }
        let (wait, ticket) = slot(&self.ask(now, None, Some(&resume)));
        assert!(wait > Duration::from_millis(200), "{wait:?}");
        (wait, ticket, resume)
    }
}

fn slot(answer: &Answer) -> (Duration, Vec<u8>) {
    match answer.verdict {
        Verdict::Slot { wait, ticket, .. } => (wait, ticket.to_vec()),
        other => panic!("no slot: {other:?} {:?}", answer.reason),
    }
}

fn is_in(answer: &Answer) -> bool {
    matches!(answer.verdict, Verdict::Admit { .. })
}

fn after(now: Now, d: Duration) -> Now {
    Now { mono: now.mono.after(d), wall: now.wall.after(d) }
}

#[test]
fn a_slot_is_kept_and_lets_in() {
    let (mut bench, now) = (bench(), at(0));
    let (wait, ticket, resume) = bench.told(1, now);
    let answer = bench.ask(after(now, wait), Some(&ticket), Some(&resume));
    assert!(is_in(&answer) && answer.reason == Reason::InSlot, "{answer:?}");
}

#[test]
fn the_slot_is_remembered_without_the_ticket() {
    let (mut bench, now) = (bench(), at(0));
    let (wait, _, resume) = bench.told(1, now);
    assert_eq!(slot(&bench.ask(at(ms(10)), None, Some(&resume))).0, wait - Duration::from_millis(10));
    assert!(is_in(&bench.ask(after(now, wait), None, Some(&resume))));
}

#[test]
fn any_gateway_of_the_fleet_honours_it() {
    let (mut here, mut there, now) = (bench(), bench(), at(0));
    let (wait, ticket, resume) = here.told(1, now);
    there.fill(after(now, wait));
    let answer = there.ask(after(now, wait), Some(&ticket), Some(&resume));
    assert!(is_in(&answer) && answer.reason == Reason::InSlot, "{answer:?}");
}

#[test]
fn early_by_more_than_the_window_is_sent_back_to_the_same_slot() {
    let (mut bench, now) = (bench(), at(0));
    let (wait, ticket, resume) = bench.told(1, now);
    let early = after(now, wait - Duration::from_millis(60));
    let answer = bench.ask(early, Some(&ticket), Some(&resume));
    assert_eq!((answer.ticket, slot(&answer).0), (Some(TicketError::Early), Duration::from_millis(60)));
    assert!(is_in(&bench.ask(after(now, wait - Duration::from_millis(40)), Some(&ticket), Some(&resume))));
}

#[test]
fn late_by_more_than_the_window_counts_for_nothing() {
    let (mut bench, now) = (bench(), at(0));
    let (wait, ticket, resume) = bench.told(1, now);
    let late = after(now, wait + Duration::from_millis(5001));
    bench.fill(late);
    let answer = bench.ask(late, Some(&ticket), Some(&resume));
    assert_eq!(answer.ticket, Some(TicketError::Expired));
    assert_ne!(answer.reason, Reason::InSlot);
}

#[test]
fn a_ticket_lets_in_once() {
    let (mut bench, now) = (bench(), at(0));
    let (wait, ticket, resume) = bench.told(1, now);
    let then = after(now, wait);
    assert!(is_in(&bench.ask(then, Some(&ticket), Some(&resume))));
    bench.fill(then);
    let again = bench.ask(then, Some(&ticket), Some(&resume));
    assert_eq!(again.ticket, Some(TicketError::Replayed));
    assert_ne!(again.reason, Reason::InSlot);
}

#[test]
fn a_stolen_ticket_is_nothing_without_its_owner() {
    let (mut bench, now) = (bench(), at(0));
    let (wait, ticket, _) = bench.told(1, now);
    let thief = bench.resume(2, Class::Game);
    let then = after(now, wait);
    for resume in [Some(thief.as_slice()), None] {
        bench.fill(then);
        let answer = bench.ask(then, Some(&ticket), resume);
        assert_eq!(answer.ticket, Some(TicketError::OtherIdentity));
        assert_ne!(answer.reason, Reason::InSlot);
    }
}

#[test]
fn an_anonymous_ticket_shared_by_many_lets_one_in() {
    let (mut bench, now) = (bench(), at(0));
    bench.fill(now);
    for _ in 0..600 {
        bench.ask(now, None, None);
    }
    let (wait, ticket) = slot(&bench.ask(now, None, None));
    let then = after(now, wait);
    // The others are strangers that share one place in the line: each moment of it lets one of them in.
    let answers: Vec<_> = (0..50).map(|_| bench.ask(then, Some(&ticket), None)).collect();
    assert!(is_in(&answers[0]) && answers[0].ticket.is_none());
    assert!(answers[1..].iter().all(|a| a.ticket == Some(TicketError::Replayed)));
}

#[test]
fn forged_and_foreign_bytes_are_neutral() {
    let (mut bench, now) = (bench(), at(0));
    let (wait, ticket, resume) = bench.told(1, now);
    let mut forged = ticket.clone();
    forged[15] ^= 1;
    let foreign = Bench { keys: keys(9), ..self::bench() }.told(1, now).1;
    for (shown, why) in [
        (forged.as_slice(), TicketError::Forged),
        (foreign.as_slice(), TicketError::UnknownKey),
        (&ticket[..43], TicketError::Malformed),
        (&[], TicketError::Malformed),
    ] {
        let answer = bench.ask(at(ms(1)), Some(shown), Some(&resume));
        assert_eq!(answer.ticket, Some(why));
        assert_eq!(slot(&answer).0, wait - Duration::from_millis(1), "the slot it has, no better and no worse");
    }
}

#[test]
fn hammering_delays_and_never_gains() {
    let (mut bench, now) = (bench(), at(0));
    let (wait, ticket, resume) = bench.told(1, now);
    let mut t = Duration::ZERO;
    while t + Duration::from_millis(50) < wait {
        slot(&bench.ask(after(now, t), Some(&ticket), Some(&resume)));
        t += Duration::from_millis(10);
    }
    let answer = bench.ask(after(now, wait), Some(&ticket), Some(&resume));
    assert_eq!(answer.reason, Reason::Hammering);
    let more = slot(&answer).0;
    assert!(more <= Duration::from_secs(1), "{more:?}");
    assert!(is_in(&bench.ask(after(now, wait + more), Some(&ticket), Some(&resume))));
}

#[test]
fn beyond_the_horizon_the_answer_is_plain_and_stays() {
    let (mut bench, now) = (bench(), at(0));
    bench.fill(now);
    let mut waits = Vec::new();
    for client in 0..40_000 {
        let resume = bench.resume(client, Class::Document);
        if let Verdict::Full { wait } = bench.ask(now, None, Some(&resume)).verdict {
            waits.push(wait);
            let Verdict::Full { wait: again } = bench.ask(at(ms(1)), None, Some(&resume)).verdict else { panic!() };
            assert_eq!(again, wait - Duration::from_millis(1));
        }
    }
    assert!((5_000..12_000).contains(&waits.len()), "{}", waits.len());
    let s = Duration::from_secs;
    assert!(waits.iter().all(|w| (s(30)..=s(45)).contains(w)));
}

#[test]
fn those_that_come_in_a_bunch_wait_in_place_at_the_pace() {
    let (mut bench, now) = (bench(), at(0));
    bench.fill(now);
    let told: Vec<_> = (0..400)
        .map(|client| {
            let resume = bench.resume(client, Class::Meeting);
            match bench.ask(now, None, Some(&resume)).verdict {
                Verdict::Slot { ticket, .. } => Some((ticket, resume)),
                _ => None,
            }
        })
        .collect();
    // The network held them up, and brings the last 200 at the same moment.
    let then = at(ms(600));
    let mut entered: Vec<Duration> = Vec::new();
    for (ticket, resume) in told.into_iter().flatten().rev().take(200) {
        match bench.ask(then, Some(&ticket), Some(&resume)).verdict {
            Verdict::Admit { hold, .. } => entered.push(hold),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(entered.len(), 200);
    assert!(entered.iter().all(|hold| *hold <= Duration::from_millis(250)), "{entered:?}");
    let bound = |ms: u64| 20 + (1050 * ms).div_ceil(1000);
    for window in [10, 50, 100] {
        let most = entered.iter().filter(|h| **h <= Duration::from_millis(window)).count();
        assert!(most as u64 <= bound(window), "{most} within {window} ms");
    }
}

#[test]
fn no_second_admits_more_than_the_guard_and_the_burst() {
    // Strangers, resuming clients and holders of slots of another gateway, three times R in all, after a minute of idling.
    for idle_s in [0, 60] {
        let (mut bench, mut other) = (bench(), bench());
        let mut entered: Vec<Mono> = Vec::new();
        let mut due: Vec<(Mono, Vec<u8>, Vec<u8>)> = Vec::new();
        for tick in 0..3000 {
            let now = at(idle_s * S + ms(tick));
            let client = u32::try_from(tick).unwrap();
            let (game, elsewhere) = (bench.resume(client, Class::Game), bench.resume(client + 50_000, Class::Document));
            other.fill(now);
            if let Verdict::Slot { wait, ticket, .. } = other.ask(now, None, Some(&elsewhere)).verdict {
                due.push((now.mono.after(wait), ticket.to_vec(), elsewhere));
            }
            let (ready, later) = due.into_iter().partition(|(slot, ..)| *slot <= now.mono);
            due = later;
            let mut answers = vec![bench.ask(now, None, None), bench.ask(now, None, Some(&game))];
            let ready: Vec<_> = ready;
            answers.extend(ready.iter().map(|(_, k, r)| bench.ask(now, Some(k), Some(r))));
            for answer in answers {
                if let Verdict::Admit { hold, .. } = answer.verdict {
                    entered.push(now.mono.after(hold));
                }
            }
        }
        entered.sort_unstable();
        for (i, first) in entered.iter().enumerate() {
            let in_1_s = entered[i..].partition_point(|t| t.0 < first.0 + S);
            assert!(in_1_s <= 1070, "{in_1_s} in a second, after {idle_s} s of idling");
        }
        assert!(entered.len() >= 2900, "{}", entered.len());
    }
}

#[test]
fn other_limits_keep_slots_and_grant_no_burst() {
    let (mut bench, now) = (bench(), at(0));
    let (wait, ticket, resume) = bench.told(1, now);
    bench.gate.configure(now.mono, config(2000));
    assert_eq!(bench.fill(now), 0, "no new burst");
    bench.gate.configure(now.mono, config(1000));
    assert_eq!(bench.fill(now), 0, "back and forth neither");
    assert!(is_in(&bench.ask(after(now, wait), Some(&ticket), Some(&resume))));
}
