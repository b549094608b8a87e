use super::*;

const S: u64 = 1_000_000;

fn conns(n: u64) -> impl Iterator<Item = ConnId> {
    (1..=n).map(ConnId)
}

fn tell(conn: u64, slot: u64) -> Command {
    Command::Tell { conn: ConnId(conn), slot: Mono(slot) }
}

fn close(conn: u64, slot: u64) -> Command {
    Command::Close { conn: ConnId(conn), slot: Mono(slot) }
}

fn poll(drain: &mut Drain, now: u64, moving: &[u64]) -> Vec<Command> {
    let mut out = Vec::new();
    drain.poll(Mono(now), &|c| moving.contains(&c.0), &mut out);
    out
}

#[test]
fn each_is_told_before_its_slot_in_order_and_at_the_pace() {
    let mut drain = Drain::new(Mono(10 * S), 2);
    conns(5).for_each(|c| drain.handle_client(c));
    conns(5).for_each(|c| drain.handle_client(c));
    assert_eq!(poll(&mut drain, 10 * S, &[]), [tell(1, 10 * S), tell(2, 10_500_000), tell(3, 11 * S)]);
    assert_eq!((drain.poll_timeout(), drain.last_slot(Mono(10 * S))), (Some(Mono(10_500_000)), Mono(12 * S)));
    assert_eq!(poll(&mut drain, 10_499_999, &[]), []);
    assert_eq!(poll(&mut drain, 10_500_000, &[]), [tell(4, 11_500_000)]);
    assert_eq!(poll(&mut drain, 11 * S, &[]), [tell(5, 12 * S)]);
    assert_eq!(drain.progress(), Progress { total: 5, told: 5, gone: 0, forced: 0 });
    assert_eq!(drain.last_slot(Mono(11 * S)), Mono(12 * S));
}

#[test]
fn whoever_stays_past_its_window_is_closed() {
    let mut drain = Drain::new(Mono(0), 1000);
    conns(3).for_each(|c| drain.handle_client(c));
    assert_eq!(poll(&mut drain, 0, &[]), [tell(1, 0), tell(2, 1_000), tell(3, 2_000)]);
    drain.handle_gone(ConnId(2));
    assert_eq!(drain.poll_timeout(), Some(Mono(4 * S)));
    assert_eq!(poll(&mut drain, 4 * S, &[]), [close(1, 4 * S)]);
    assert_eq!(poll(&mut drain, 4 * S + 2_000, &[]), [close(3, 4 * S + 2_000)]);
    assert_eq!(drain.poll_timeout(), None);
    assert!(!drain.is_empty(), "closing is not gone");
    [1, 3, 3, 9].map(ConnId).into_iter().for_each(|c| drain.handle_gone(c));
    assert!(drain.is_empty());
    assert_eq!(drain.progress(), Progress { total: 3, told: 3, gone: 3, forced: 2 });
}

#[test]
fn those_on_the_move_go_last_and_first_of_them_who_has_moved() {
    let mut drain = Drain::new(Mono(0), 1);
    conns(5).for_each(|c| drain.handle_client(c));
    assert_eq!(poll(&mut drain, 0, &[1, 2, 3]), [tell(4, 0), tell(5, S)]);
    drain.handle_client(ConnId(6));
    assert_eq!(poll(&mut drain, S, &[1, 2, 3]), [tell(6, 2 * S)], "a late one is not on the move");
    assert_eq!(poll(&mut drain, 2 * S, &[1, 3]), [tell(2, 3 * S)], "it has moved");
    drain.handle_gone(ConnId(1));
    assert_eq!(poll(&mut drain, 9 * S, &[1, 3])[..1], [tell(3, 9 * S)], "nobody waits for ever");
}

#[test]
fn late_ones_get_the_next_slots_without_a_burst_and_the_silent_are_closed() {
    let mut drain = Drain::new(Mono(0), 10);
    drain.handle_client(ConnId(1));
    assert_eq!(poll(&mut drain, 0, &[]), [tell(1, 0)]);
    assert_eq!(drain.poll_timeout(), Some(Mono(4 * S)), "nobody waits");
    let mut out = Vec::new();
    [2, 3].map(ConnId).into_iter().for_each(|c| drain.handle_silent(Mono(3 * S), c, &mut out));
    drain.handle_silent(Mono(3 * S), ConnId(2), &mut out);
    assert_eq!(out, [close(2, 3 * S), close(3, 3_100_000)]);
    drain.handle_client(ConnId(3));
    drain.handle_client(ConnId(4));
    assert_eq!(poll(&mut drain, 3 * S, &[]), [tell(4, 3_200_000)], "the silent one is not told as well");
    assert_eq!(drain.progress(), Progress { total: 4, told: 2, gone: 0, forced: 0 });
}

#[test]
fn in_a_hurry_everybody_is_closed_with_a_slot_of_its_own() {
    let mut drain = Drain::new(Mono(0), 1);
    conns(4).for_each(|c| drain.handle_client(c));
    assert_eq!(poll(&mut drain, 0, &[4]), [tell(1, 0), tell(2, S)]);
    drain.handle_hurry();
    assert_eq!(poll(&mut drain, 500_000, &[4]), [close(1, 500_000), close(2, S), close(3, 2 * S), close(4, 3 * S)]);
    assert_eq!(poll(&mut drain, 600_000, &[]), []);
    drain.handle_client(ConnId(5));
    assert_eq!(poll(&mut drain, 700_000, &[]), [close(5, 4 * S)]);
    assert_eq!(drain.progress(), Progress { total: 5, told: 2, gone: 0, forced: 5 });
}

#[test]
fn the_rate_can_change_and_bounds_every_second() {
    let mut drain = Drain::new(Mono(0), 100);
    conns(1_000).for_each(|c| drain.handle_client(c));
    let (mut slots, mut now) = (Vec::new(), 0);
    while slots.len() < 1_000 {
        if slots.len() > 300 {
            drain.set_rate(400);
        }
        let told = poll(&mut drain, now, &[]);
        slots.extend(told.iter().map(|c| match c {
            Command::Tell { slot, .. } | Command::Close { slot, .. } => slot.0,
        }));
        told.iter().for_each(|c| {
            let (Command::Tell { conn, .. } | Command::Close { conn, .. }) = c;
            drain.handle_gone(*conn);
        });
        now += 20_000;
    }
    assert!(slots.is_sorted());
    let most = slots.iter().map(|from| slots.iter().filter(|s| (*from..from + S).contains(s)).count()).max();
    assert_eq!(most, Some(400));
    assert!(drain.is_empty());
}
