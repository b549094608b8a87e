use super::*;
use crate::id::SessionId;

fn unit(id: &str) -> PlacementUnit {
    PlacementUnit::of(&SessionId::parse(id).unwrap())
}

fn at(epoch: u64, node: &str, boot: u64, revision: i64) -> Route {
    Route {
        epoch,
        boot: Boot(boot),
        node: node.into(),
        addr: "".into(),
        kind: "game".into(),
        ended: false,
        revision,
        unowned_from_ms: 0,
    }
}

fn node(boot: u64, addr: &str) -> NodeInfo {
    NodeInfo { boot, addr: addr.into(), ..NodeInfo::default() }
}

const S: u64 = 1_000_000;

#[test]
fn one_merge_for_all_sources() {
    let mut d = Directory::default();
    let u = unit("a");
    assert_eq!(d.merge(&u, at(2, "o1", 1, 10)), Merge::Changed);
    assert_eq!(d.merge(&u, at(2, "o1", 1, 12)), Merge::Refreshed);
    assert_eq!(d.merge(&u, at(1, "o2", 2, 13)), Merge::Dropped);
    assert_eq!(d.merge(&u, at(2, "o2", 2, 14)), Merge::Alarm);
    assert_eq!(d.lookup(&u).unwrap(), at(2, "o1", 1, 12));
    let ended = Route { ended: true, ..at(2, "o1", 1, 15) };
    assert_eq!(d.merge(&u, ended.clone()), Merge::Updated);
    assert_eq!(d.merge(&u, at(2, "o1", 1, 12)), Merge::Refreshed, "an older revision does not bring it back");
    assert_eq!(d.lookup(&u).unwrap(), ended);
    assert_eq!(d.counters(), Counters { dropped: 1, alarms: 1, swept: 0 });
}

#[test]
fn a_hint_moves_the_owner_and_keeps_the_rest() {
    let mut d = Directory::default();
    d.merge(&unit("a"), at(2, "o1", 1, 10));
    let hint = Route { addr: "h:1".into(), kind: "".into(), ..at(3, "o2", 2, 0) };
    assert_eq!(d.merge(&unit("a"), hint), Merge::Changed);
    assert_eq!(d.lookup(&unit("a")).unwrap(), Route { addr: "h:1".into(), ..at(3, "o2", 2, 0) });
    assert_eq!(d.merge(&unit("a"), at(3, "o2", 2, 20)), Merge::Refreshed);
    assert_eq!(d.lookup(&unit("a")).unwrap().revision, 20);
}

#[test]
fn addresses_belong_to_a_life() {
    let mut d = Directory::default();
    d.merge(&unit("a"), at(1, "o1", 7, 3));
    assert!(d.merge_node("o1", node(7, "h:1"), 2));
    assert!(!d.merge_node("o1", node(7, "h:1"), 3));
    assert_eq!(&*d.lookup(&unit("a")).unwrap().addr, "h:1");
    assert!(d.merge_node("o1", node(8, "h:2"), 4));
    assert_eq!(&*d.lookup(&unit("a")).unwrap().addr, "");
    assert_eq!(d.handle_node_gone("o1", 4), None, "an old deletion");
    assert_eq!(d.handle_node_gone("o1", 5), Some(Boot(8)));
}

#[test]
fn cold_listing_synced_stale() {
    let mut d = Directory::default();
    assert_eq!((d.state(), d.age(Mono(0))), (State::Cold, None));
    d.handle_list_started();
    assert_eq!(d.state(), State::Listing);
    assert!(!d.handle_trouble());
    assert_eq!(d.state(), State::Cold);
    d.handle_list_started();
    d.handle_list_done(Mono(S));
    assert_eq!((d.state(), d.poll_timeout()), (State::Synced, Some(Mono(4 * S))));
    d.handle_progress(Mono(2 * S));
    assert!(!d.handle_timeout(Mono(4 * S)));
    assert!(d.handle_timeout(Mono(5 * S)));
    assert_eq!((d.state(), d.age(Mono(6 * S))), (State::Stale, Some(Duration::from_secs(4))));
    d.handle_list_started();
    assert_eq!(d.state(), State::Stale, "a list under way is not yet fresh");
    d.handle_list_done(Mono(7 * S));
    assert_eq!(d.state(), State::Synced);
}

#[test]
fn a_sweep_takes_half_and_no_more() {
    let mut d = Directory::default();
    d.handle_list_started();
    for (i, id) in ["a", "b", "c", "d"].into_iter().enumerate() {
        d.merge(&unit(id), at(1, "o1", 1, i as i64 + 2));
    }
    assert_eq!(d.handle_list_done(Mono(0)), Swept::default());
    d.handle_list_started();
    d.merge(&unit("a"), at(1, "o1", 1, 2));
    let guarded = Some(Guarded { gone: 3, known: 4 });
    assert_eq!(d.handle_list_done(Mono(0)), Swept { guarded, ..Swept::default() });
    assert!(d.lookup(&unit("d")).is_some());
    d.handle_list_started();
    d.merge(&unit("a"), at(1, "o1", 1, 2));
    d.merge(&unit("b"), at(1, "o1", 1, 3));
    let mut swept = d.handle_list_done(Mono(0));
    swept.units.sort();
    assert_eq!(swept, Swept { units: vec![unit("c"), unit("d")], ..Swept::default() });
    d.handle_list_started();
    assert!(d.handle_list_done(Mono(0)).guarded.is_some());
    assert_eq!(d.accept().units.len(), 2);
    assert_eq!(d.len(), (0, 0));
}

#[test]
fn nodes_go_with_their_leases_but_not_with_the_whole_directory() {
    let mut d = Directory::default();
    d.handle_list_started();
    d.merge_node("o1", node(7, "h:1"), 2);
    d.handle_list_done(Mono(0));
    d.handle_list_started();
    d.merge(&unit("a"), at(1, "o1", 7, 3));
    assert_eq!(d.handle_list_done(Mono(0)).nodes, [("o1".into(), Boot(7))]);
    d.merge_node("o1", node(7, "h:1"), 4);
    d.handle_list_started();
    assert!(d.handle_list_done(Mono(0)).guarded.is_some());
    assert!(d.node("o1").is_some());
}

#[test]
fn a_deleted_key_is_read_again() {
    let mut d = Directory::default();
    d.merge(&unit("a"), at(1, "o1", 1, 5));
    assert!(!d.handle_deleted(&unit("b"), 6));
    assert!(!d.handle_deleted(&unit("a"), 5), "older than what is known");
    assert!(d.handle_deleted(&unit("a"), 6));
    assert!(d.lookup(&unit("a")).is_some());
    assert!(d.handle_absent(&unit("a"), 7));
    d.merge(&unit("a"), Route { ended: true, ..at(1, "o1", 1, 8) });
    assert!(!d.handle_deleted(&unit("a"), 9), "a tombstone's end is no news");
    assert_eq!(d.lookup(&unit("a")), None);
}
