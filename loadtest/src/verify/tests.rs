//! Doctored records and journals: each violation must be found, and a clean run must pass.

use super::*;
use crate::dump::Stored;
use crate::record::{Header, Lane, Outcome};

const T: u64 = 1_000_000_000;

fn entry(ver: u64, seq: u64, epoch: u64) -> Stored {
    let stamp = Stamp { arrived_at_us: T + seq * 1_000 + 100, ..Stamp::default() };
    let entry = Entry {
        ver,
        epoch,
        lane: vec![0xab; 8].into(),
        seq,
        principal: "ann".into(),
        stamp: stamp.encode_to_vec().into(),
        op_end: true,
        attempt: 1,
        ..Entry::default()
    };
    Stored { entry, create_rev: i64::try_from(ver).unwrap() + 100 }
}

fn line(t_us: u64, what: What, op: u64, ver: u64) -> Line {
    let mut line = Line::new(t_us, &Arc::from("ann"), what);
    (line.session, line.lane) = (Arc::from("s"), Arc::from("abababababababab"));
    (line.op, line.ver, line.epoch) = (op, ver, u64::from(ver > 0));
    line
}

/// Ops 1..=3 of one client, sent, echoed and recorded.
fn clean() -> (Vec<Line>, Record) {
    let mut lines = Vec::new();
    for op in 1..=3 {
        lines.push(line(T + op * 1_000, What::Sent, op, 0));
        lines.push(line(T + op * 1_000 + 500, What::Echo, op, op));
    }
    let outcomes = (1..=3).map(|seq| Outcome { seq, ver: seq, code: 0 }).collect();
    let of = Recorded {
        header: Header { epoch: 1, ver: 3, ..Header::default() },
        entries: (1..=3).map(|v| entry(v, v, 1)).collect(),
        lanes: HashMap::from([(("ann".into(), "ab".repeat(8)), Lane { last_decided: 3, outcomes })]),
    };
    (lines, HashMap::from([("s".to_owned(), of)]))
}

fn of(record: &mut Record) -> &mut Recorded {
    record.get_mut("s").unwrap()
}

#[test]
fn a_clean_run_passes_and_nothing_acked_fails() {
    let (lines, record) = clean();
    let verdict = judge(&lines, &record);
    assert!(verdict.clean(), "{verdict:?}");
    assert_eq!((verdict.sent, verdict.acked, verdict.resent), (3, 3, 0));
    assert!(!judge(&[], &record).clean());
}

#[test]
fn an_acked_op_that_is_not_recorded_is_lost() {
    let (lines, mut record) = clean();
    of(&mut record).entries.pop();
    of(&mut record).header.ver = 2;
    of(&mut record).lanes.clear();
    assert_eq!(judge(&lines, &record).acked_lost, 1);
    let (lines, mut record) = clean();
    record.clear();
    assert_eq!(judge(&lines, &record).acked_lost, 3);
    drop(lines);
}

#[test]
fn an_ack_that_names_another_version_is_lost() {
    let (mut lines, record) = clean();
    let mut ack = line(T + 9_000, What::Ack, 2, 3);
    ack.epoch = 1;
    lines.push(ack);
    assert_eq!(judge(&lines, &record).acked_lost, 1);
}

#[test]
fn an_op_recorded_twice_is_found() {
    let (lines, mut record) = clean();
    of(&mut record).entries.push(entry(4, 3, 1));
    of(&mut record).header.ver = 4;
    assert_eq!(judge(&lines, &record).duplicated, 1);
}

#[test]
fn a_lane_out_of_order_is_found() {
    let (lines, mut record) = clean();
    let entries = &mut of(&mut record).entries;
    (entries[0].entry.seq, entries[1].entry.seq) = (2, 1);
    assert!(judge(&lines, &record).reordered > 0);
}

#[test]
fn a_hole_in_the_record_and_in_what_was_heard_is_found() {
    let (lines, mut record) = clean();
    of(&mut record).entries.remove(1);
    assert!(judge(&lines, &record).reordered > 0);
    let (mut lines, record) = clean();
    lines.remove(3);
    let verdict = judge(&lines, &record);
    assert_eq!((verdict.reordered, verdict.unsettled), (1, 1));
    lines.push(line(T + 9_000, What::Resync, 0, 0));
    assert_eq!(judge(&lines, &record).reordered, 0);
}

#[test]
fn a_final_refusal_of_a_recorded_op_is_found_and_unknown_is_not_one() {
    for (applied, found) in [("no", 1), ("unknown", 0)] {
        let (mut lines, record) = clean();
        lines[5].what = What::Nack;
        (lines[5].code, lines[5].applied) = (Arc::from("REJECTED"), Arc::from(applied));
        assert_eq!(judge(&lines, &record).final_nack_but_recorded, found);
    }
}

#[test]
fn an_op_without_an_answer_is_unsettled_also_after_a_retryable_refusal() {
    let (mut lines, record) = clean();
    lines[5].what = What::Nack;
    lines[5].code = Arc::from("OVERLOADED");
    let verdict = judge(&lines, &record);
    assert_eq!((verdict.unsettled, verdict.nacked), (1, 0));
    assert_eq!(verdict.retries[&Arc::from("OVERLOADED")], 1);
}

#[test]
fn a_stamp_made_again_is_found_by_time_and_by_receipt() {
    let (lines, mut record) = clean();
    let late = Stamp { arrived_at_us: T + 3_000_000, ..Stamp::default() };
    of(&mut record).entries[2].entry.stamp = late.encode_to_vec().into();
    assert_eq!(judge(&lines, &record).stamps_changed, 1);

    let (mut lines, record) = clean();
    let first = Stamp { arrived_at_us: T + 3_090, ..Stamp::default() };
    let mut sealed = StampReceipt { stamp: first.encode_to_vec().into() }.encode_to_vec();
    sealed.extend([0; 16]);
    let mut receipt = line(T + 3_200, What::Receipt, 3, 0);
    receipt.code = Arc::from(B64URL.encode(sealed));
    lines.push(receipt);
    assert_eq!(judge(&lines, &record).stamps_changed, 1);
}

#[test]
fn a_write_of_a_replaced_epoch_is_found() {
    let (lines, mut record) = clean();
    of(&mut record).entries[1].entry.epoch = 2;
    assert_eq!(judge(&lines, &record).stale_writes, 1);
    let (lines, mut record) = clean();
    of(&mut record).entries[1].create_rev = 999;
    assert_eq!(judge(&lines, &record).stale_writes, 1);
}

#[test]
fn an_old_epoch_delivered_is_found() {
    let (mut lines, record) = clean();
    lines[3].epoch = 5;
    assert_eq!(judge(&lines, &record).stale_epoch_delivered, 1);
    let (mut lines, record) = clean();
    lines.push(line(T + 9_000, What::Stale, 0, 2));
    assert_eq!(judge(&lines, &record).stale_epoch_delivered, 1);
}

#[test]
fn an_outage_charged_to_a_player_is_found_and_thought_is_not() {
    for (charged, found) in [(2_000_000, 1), (200_000, 0)] {
        let (lines, mut record) = clean();
        of(&mut record).entries[2].entry.payload = format!("{{\"charged_us\":{charged}}}").into();
        assert_eq!(judge(&lines, &record).charged_outage, found);
    }
}

#[test]
fn a_resend_is_counted_from_the_record_or_the_journal() {
    let (lines, mut record) = clean();
    of(&mut record).entries[1].entry.attempt = 2;
    assert_eq!(judge(&lines, &record).resent, 1);
    let (mut lines, record) = clean();
    let mut again = line(T + 1_200, What::Sent, 1, 0);
    again.attempt = 2;
    lines.insert(1, again);
    assert_eq!(judge(&lines, &record).resent, 1);
}

#[test]
fn what_went_back_is_lost_unless_its_client_was_told_and_must_stay_away() {
    let (mut lines, mut record) = clean();
    let recorded = of(&mut record);
    recorded.entries.truncate(2);
    recorded.header.ver = 2;
    let lane = recorded.lanes.values_mut().next().unwrap();
    lane.last_decided = 2;
    lane.outcomes.truncate(2);
    assert_eq!(judge(&lines, &record).acked_lost, 1);
    lines.push(line(T + 9_000, What::Check, 3, 3));
    let verdict = judge(&lines, &record);
    assert!(verdict.clean(), "{verdict:?}");
    assert_eq!((verdict.rolled_back, verdict.told_to_check, verdict.re_raised), (1, 1, 0));
    lines.push(line(T + 9_500, What::Sent, 3, 0));
    assert_eq!(judge(&lines, &record).re_raised, 1);
}
