//! The rules against endings made by hand.

use super::*;

const S: u64 = 1_000_000;

fn rules(policy: Policy) -> Rules {
    let mut rules = Rules::new(policy, vec![7, 8, 9]);
    let hint = Hint { spread_ms: 4_000, rank_ppm: 250_000, base_ms: 250, cap_ms: 8_000 };
    rules.handle_welcome(100 * S, Some(hint), "RRRR");
    rules
}

fn closed(code: u16, reason: &str) -> End {
    End::Closed { code, reason: reason.to_owned() }
}

fn wait(next: Next) -> u64 {
    match next {
        Next::Dial { wait_us } => wait_us,
        Next::Stop => panic!("stopped"),
    }
}

#[test]
fn a_gateway_that_vanishes_sends_its_clients_away_by_rank_once_and_then_they_jitter() {
    let mut rules = rules(Policy::Ranks);
    assert_eq!(rules.handle_end(200 * S, &End::Lost, 0), Next::Dial { wait_us: S });
    assert_eq!((rules.gateway(), rules.query()), (8, "?r=RRRR".to_owned()));
    rules.handle_welcome(201 * S, None, "");
    let next = rules.handle_end(202 * S, &End::Lost, 0);
    assert_eq!(wait(next), 250_000, "within 5 s of the first: the smallest jitter");
    assert_eq!(rules.gateway(), 9, "7 and 8 are left alone");
    let next = rules.handle_end(203 * S, &End::NotReached, u64::MAX);
    assert!((250_000..=750_000).contains(&wait(next)));
}

#[test]
fn five_seconds_of_life_make_a_connection_stable() {
    let mut rules = rules(Policy::Ranks);
    rules.handle_end(200 * S, &End::Lost, 0);
    rules.handle_welcome(201 * S, None, "");
    assert_eq!(wait(rules.handle_end(206 * S, &End::Lost, 0)), S, "by rank again");
}

#[test]
fn a_slot_is_kept_at_the_gateway_that_gave_it_and_a_drain_leads_elsewhere() {
    let mut rules = rules(Policy::Slots);
    assert_eq!(wait(rules.handle_end(200 * S, &End::Lost, 0)), 0, "comes at once");
    let next = rules.handle_end(200 * S, &closed(1013, r#"{"r":"slot","ms":4870,"k":"KK"}"#), 0);
    assert_eq!((wait(next), rules.gateway(), rules.query()), (4_870_000, 8, "?k=KK&r=RRRR".to_owned()));
    let next = rules.handle_end(205 * S, &closed(1013, r#"{"r":"full","ms":31000}"#), 0);
    assert_eq!((wait(next), rules.query()), (31_000_000, "?r=RRRR".to_owned()));
    let next = rules.handle_end(240 * S, &closed(1012, r#"{"r":"drain","ms":20,"k":"DD"}"#), 0);
    assert_eq!((wait(next), rules.gateway(), rules.query()), (20_000, 9, "?k=DD&r=RRRR".to_owned()));
    rules.handle_welcome(241 * S, None, "R2");
    assert_eq!(rules.query(), "?r=R2", "a ticket is good once");
    let next = rules.handle_end(241 * S, &closed(1013, "no JSON"), 0);
    assert_eq!(wait(next), 250_000);
}

#[test]
fn a_goaway_is_obeyed_also_when_the_gateway_dies_before() {
    let mut rules = rules(Policy::Ranks);
    assert_eq!(rules.handle_goaway(200 * S, 1_730, "GG"), 201_730_000);
    assert_eq!(rules.handle_end(201_730_000, &End::Moved, 0), Next::Dial { wait_us: 0 });
    assert_eq!((rules.gateway(), rules.query()), (8, "?k=GG&r=RRRR".to_owned()));
    rules.handle_welcome(202 * S, None, "");
    rules.handle_goaway(300 * S, 2_000, "HH");
    assert_eq!(wait(rules.handle_end(301 * S, &End::Lost, 0)), S);
}

#[test]
fn codes_decide() {
    for code in [4201, 4203] {
        assert_eq!(wait(rules(Policy::Ranks).handle_end(200 * S, &closed(code, ""), 0)), 0);
    }
    for code in [1001, 1006, 1011, 4100, 4102, 4106] {
        assert_eq!(wait(rules(Policy::Ranks).handle_end(200 * S, &closed(code, ""), 0)), 250_000, "{code}");
    }
    for code in [1000, 1002, 1003, 1007, 1009, 1010, 4000, 4001, 4006, 4300, 4999] {
        assert_eq!(rules(Policy::Ranks).handle_end(200 * S, &closed(code, ""), 0), Next::Stop, "{code}");
    }
}

#[test]
fn a_silence_is_answered_at_once_but_only_once() {
    let mut rules = rules(Policy::Ranks);
    assert_eq!(wait(rules.handle_end(200 * S, &End::Silent, 0)), 0);
    assert_eq!(wait(rules.handle_end(201 * S, &End::Silent, 0)), 250_000);
}

#[test]
fn jitter_grows_threefold_to_its_cap_and_full_jitter_doubles() {
    let mut rules = Rules::new(Policy::Decorrelated, vec![0]);
    let mut high = 250_000;
    for _ in 0..6 {
        // `random` that picks the top of the range [base, 3 x previous]
        high = (3 * high).min(8_000_000);
        let top = 3 * rules.previous_us.max(250_000) - 250_000;
        assert_eq!(wait(rules.handle_end(S, &End::NotReached, top)), high);
    }
    let mut rules = Rules::new(Policy::FullJitter, vec![0]);
    for high in [250_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000, 8_000_000] {
        assert_eq!(wait(rules.handle_end(S, &End::Lost, high)), high);
    }
    let refused = closed(1013, r#"{"r":"slot","ms":9,"k":"K"}"#);
    assert!(wait(rules.handle_end(S, &refused, 5_000_000)) > 9_000, "it believes nothing");
}

#[test]
fn whoever_hammers_does_not_wait() {
    let mut rules = rules(Policy::Hammer);
    assert_eq!(wait(rules.handle_end(200 * S, &End::Lost, 0)), 0);
    let refused = closed(1013, r#"{"r":"slot","ms":9000,"k":"KK"}"#);
    assert_eq!(wait(rules.handle_end(200 * S, &refused, 0)), HAMMER_US);
    assert_eq!(rules.query(), "?k=KK&r=RRRR");
}

#[test]
fn an_absurd_moment_is_not_believed() {
    let refused = closed(1013, r#"{"r":"slot","ms":86400000,"k":"K"}"#);
    assert_eq!(wait(rules(Policy::Ranks).handle_end(200 * S, &refused, 0)), 250_000);
    let busy = End::Http { status: 503, retry_after_ms: 2_000 };
    assert_eq!(wait(rules(Policy::Ranks).handle_end(200 * S, &busy, 0)), 2 * S);
}
