//! A seat against words written by hand.

use super::*;
use crate::client::traffic::{Kind, games};

struct Bench {
    seat: Seat,
    scribe: Scribe,
    out: Vec<String>,
}

impl Bench {
    fn new(kind: Kind) -> Self {
        let mut seat = Seat::new(Arc::from("s"), Plan::new(kind, 0, &games(30)[0], 1));
        seat.schedule = Schedule { first_us: 100, every_us: 10, until_us: 150 };
        let scribe = Scribe { client: Arc::from("ann"), lane: Arc::from("ab"), lines: Vec::new() };
        let mut bench = Bench { seat, scribe, out: Vec::new() };
        bench.seat.attach(&mut bench.out);
        bench.hear(50, r#"{"t":"attached","session":"s","n":1,"epoch":1,"ver":0,"resume":"nothing","lane_seq":0}"#);
        bench.out.clear();
        bench
    }

    fn hear(&mut self, now_us: u64, text: &str) {
        let frame: Frame = serde_json::from_str(text).unwrap();
        self.seat.handle_frame(now_us, &frame, &mut self.scribe, &mut self.out);
    }

    fn poll(&mut self, now_us: u64) -> (u64, Vec<String>) {
        let next = self.seat.poll(now_us, &mut self.scribe, &mut self.out);
        (next, std::mem::take(&mut self.out))
    }
}

#[test]
fn ops_leave_when_due_whatever_is_pending_and_carry_their_intended_time() {
    let mut bench = Bench::new(Kind::Meeting);
    assert_eq!(bench.poll(99), (100, vec![]));
    let (next, out) = bench.poll(125);
    assert_eq!((next, out.len()), (130, 3));
    assert!(out[2].contains(r#""op":3,"settled":1"#));
    let intended: Vec<u64> =
        bench.scribe.lines.iter().filter(|l| l.what == What::Sent).map(|l| l.intended_us).collect();
    assert_eq!(intended, [100, 110, 120]);
}

#[test]
fn a_player_waits_for_the_other_and_the_intended_time_stays() {
    let mut bench = Bench::new(Kind::Game);
    assert_eq!(bench.poll(120).1.len(), 1);
    bench.hear(121, r#"{"t":"event","session":"s","epoch":1,"ver":1,"op":1,"data":{"move":"e2e4"}}"#);
    assert!(bench.poll(122).1.is_empty());
    bench.hear(130, r#"{"t":"event","session":"s","epoch":1,"ver":2,"data":{"move":"e7e5"}}"#);
    assert_eq!(bench.poll(131).1.len(), 1);
    assert_eq!(bench.scribe.lines.last().unwrap().intended_us, 110);
}

#[test]
fn a_refusal_sends_the_lane_back_and_new_ops_wait() {
    let mut bench = Bench::new(Kind::Meeting);
    bench.poll(115);
    bench.hear(116, r#"{"t":"nack","session":"s","op":1,"attempt":1,"code":"OVERLOADED","applied":"no","retry_after_ms":1,"receipt":"AQ"}"#);
    bench.hear(117, r#"{"t":"nack","session":"s","op":2,"attempt":1,"code":"GAP","applied":"no","expected":1}"#);
    let (next, out) = bench.poll(140);
    assert_eq!((next, out.len()), (116 + RETRY_US, 0));
    let (_, out) = bench.poll(117 + RETRY_US);
    assert!(out[0].contains(r#""op":1,"#) && out[0].contains(r#""attempt":2,"receipt":"AQ""#), "{out:?}");
    assert!(out[1].contains(r#""op":2,"#));
    assert!(out[2].contains(r#""op":3,"#));
}

#[test]
fn a_new_connection_resends_what_the_attach_did_not_settle() {
    let mut bench = Bench::new(Kind::Meeting);
    bench.poll(125);
    bench.seat.handle_connection_lost();
    bench.seat.attach(&mut bench.out);
    assert!(bench.out.pop().unwrap().contains(r#""n":2,"#));
    bench.hear(126, r#"{"t":"event","session":"s","epoch":1,"ver":1,"op":3}"#);
    bench.hear(127, r#"{"t":"attached","session":"s","n":1,"epoch":1,"ver":0,"lane_seq":3}"#);
    bench.hear(
        128,
        r#"{"t":"attached","session":"s","n":2,"epoch":2,"ver":2,"lane_seq":2,"rejected":[{"op":2,"code":"REJECTED"}]}"#,
    );
    let (_, out) = bench.poll(129);
    assert_eq!(out.len(), 1);
    assert!(out[0].contains(r#""op":3,"settled":3"#) && out[0].contains(r#""attempt":2"#));
}

#[test]
fn a_hole_is_asked_for_once_and_an_old_epoch_is_named() {
    let mut bench = Bench::new(Kind::Meeting);
    for ver in [2, 3] {
        bench.hear(60, &format!(r#"{{"t":"event","session":"s","epoch":2,"ver":{ver}}}"#));
    }
    assert_eq!(bench.out.len(), 1);
    bench.hear(61, r#"{"t":"event","session":"s","epoch":1,"ver":1}"#);
    assert_eq!(bench.scribe.lines.last().unwrap().what, What::Stale);
}

#[test]
fn a_record_that_went_back_names_the_settled_ops_to_check_and_sends_none_again() {
    let mut bench = Bench::new(Kind::Meeting);
    bench.poll(125);
    for op in [1, 2] {
        bench.hear(126, &format!(r#"{{"t":"event","session":"s","epoch":1,"ver":{op},"op":{op}}}"#));
    }
    bench.hear(130, r#"{"t":"snapshot","session":"s","epoch":2,"ver":1,"lane_seq":1,"why":"diverged"}"#);
    let told: Vec<(u64, u64)> =
        bench.scribe.lines.iter().filter(|l| l.what == What::Check).map(|l| (l.op, l.ver)).collect();
    assert_eq!(told, [(2, 2)]);
    let (_, out) = bench.poll(131);
    assert!(out.iter().all(|o| !o.contains(r#""op":2,"#)), "{out:?}");
    bench.hear(140, r#"{"t":"snapshot","session":"s","epoch":2,"ver":1,"lane_seq":1,"why":"diverged"}"#);
    assert_eq!(bench.scribe.lines.iter().filter(|l| l.what == What::Check).count(), 1, "told once");
}
