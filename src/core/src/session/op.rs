//! An op from a client: checked, stamped, held, forwarded (design 6.1).

use crate::{
    id::{ConnId, Lane},
    message::{self, DigestInput},
    mutant::{self, Mutant},
    proto::{self, Applied, Code, client_frame, server_frame, server_frame::F},
    session::{Action, Arrival, Observation, Session, Store, attach::deliver, hold::Held},
    time::{Now, Wall},
};

/// Wait told with a refusal that time alone will cure, ms.
const RETRY_MS: u32 = 1000;

/// Why an op does not enter the hold.
pub(super) struct Refusal {
    code: Code,
    retry_after_ms: u32,
    expected_seq: u64,
    detail: &'static str,
}

impl Refusal {
    fn last_word(code: Code, detail: &'static str) -> Self {
        Self { code, retry_after_ms: 0, expected_seq: 0, detail }
    }

    fn again(code: Code, retry_after_ms: u32, detail: &'static str) -> Self {
        Self { code, retry_after_ms, expected_seq: 0, detail }
    }
}

impl Session {
    /// `room`: the budgets for held ops (connection, gateway) allow one more.
    #[allow(clippy::too_many_arguments)] // the input is what it is: who, what, when it came, whether there is room
    pub fn handle_op(
        &mut self,
        now: Now,
        conn: ConnId,
        op: client_frame::Op,
        arrival: &Arrival,
        room: bool,
        out: &mut Vec<Action>,
    ) {
        let id = op.op.clone().unwrap_or_default();
        let Some(att) = self.atts.get(&conn) else {
            let no =
                Refusal::again(Code::TryAfterAttach, 0, "not attached to this session: attach, then the same op again");
            self.nack_op(conn, &op, &no, out);
            return;
        };
        let lane = if id.lane.is_empty() { Ok(att.lane()) } else { Lane::parse(&id.lane) };
        let Ok(lane) = lane.and_then(|l| if id.seq == 0 { Lane::parse(b"") } else { Ok(l) }) else {
            let no = Refusal::last_word(
                Code::BadFrame,
                "op: seq starts at 1; a lane is 8 to 16 bytes and does not start with '!'",
            );
            self.nack_op(conn, &op, &no, out);
            return;
        };
        let digest = message::digest(&DigestInput {
            session: self.id.as_str(),
            lane: lane.as_bytes(),
            seq: id.seq,
            base_ver: op.base_ver,
            op_kind: op.op_kind,
            content: op.content,
            payload: &op.payload,
        });
        match self.check(now, conn, &op, (lane, &digest), room) {
            Ok(true) => self.hold_op((now, arrival), conn, op, (lane, digest), out),
            Ok(false) => {}
            Err(no) => {
                if no.code as i32 / 100 == 2 {
                    self.keep_stamp(now, conn, (lane, id.seq), &digest, arrival);
                }
                if no.code as i32 / 100 == 2 && no.code != Code::Gap {
                    let back_to = self.resume_at.entry(lane).or_insert(id.seq);
                    *back_to = (*back_to).min(id.seq);
                }
                self.nack_op(conn, &op, &no, out);
            }
        }
    }

    /// The retry will have arrived when this one did.
    fn keep_stamp(&mut self, now: Now, conn: ConnId, id: (Lane, u64), digest: &bytes::Bytes, arrival: &Arrival) {
        let Some(principal) = att_principal(self, conn) else { return };
        let (sent_at_us, sent_ver) = self.delivered_before(&principal, arrival.at);
        self.refused.keep(now.mono, id, (&principal, digest), stamp(arrival, sent_at_us, sent_ver));
    }

    /// True: hold it. False: it is held already, nothing to do.
    fn check(
        &mut self,
        now: Now,
        conn: ConnId,
        op: &client_frame::Op,
        (lane, digest): (Lane, &bytes::Bytes),
        room: bool,
    ) -> Result<bool, Refusal> {
        let seq = op.op.as_ref().map_or(0, |o| o.seq);
        let first = op.attempt <= 1;
        if op.payload.len() > self.limits.payload_bytes_max {
            return Err(Refusal::last_word(Code::TooLarge, "payload above its limit (welcome.limits.payload_bytes)"));
        }
        let Some(att) = self.atts.get_mut(&conn) else { return Ok(false) };
        if let Some(held) = self.hold.get_mut(lane, seq) {
            if held.principal != att.client.principal {
                return Err(Refusal::again(Code::Overloaded, RETRY_MS, "lane in use by another user: take a new lane"));
            }
            if held.digest == *digest {
                held.conn = conn;
                held.attempt = held.attempt.max(op.attempt);
                return Ok(false);
            }
            // a resend must not hear a final word from us: the owner will say it once the held one is decided
            return Err(if first {
                Refusal::last_word(Code::OpIdReused, "this op id is held with another payload")
            } else {
                Refusal::again(Code::TooManyInflight, RETRY_MS, "this op id is held with another payload")
            });
        }
        if !first && mutant::on(Mutant::GatewayFinalOnResend) {
            return Err(Refusal::last_word(Code::Forbidden, "defect"));
        }
        if first && !att.is_participant() {
            return Err(Refusal::last_word(Code::Forbidden, "spectators send no ops"));
        }
        if first && self.route.as_ref().is_some_and(|r| r.ended) {
            return Err(Refusal::last_word(Code::SessionClosed, "the session has ended"));
        }
        self.check_turn(lane, seq, op.settled)?;
        let principal = att_principal(self, conn);
        if self.hold.lane_principal(lane).is_some_and(|p| Some(p) != principal.as_ref()) {
            return Err(Refusal::again(Code::Overloaded, RETRY_MS, "lane in use by another user: take a new lane"));
        }
        self.check_capacity(now, conn, lane, first, room)?;
        self.check_owner()
    }

    /// After a retryable nack of seq n later ops of the lane wait until the client went back to n (design 4.4).
    fn check_turn(&mut self, lane: Lane, seq: u64, settled: u64) -> Result<(), Refusal> {
        let Some(back_to) = self.resume_at.get(&lane).copied() else { return Ok(()) };
        if settled > back_to || seq == back_to {
            self.resume_at.remove(&lane);
        } else if seq > back_to {
            let detail = "an earlier op of this lane must be sent again first";
            return Err(Refusal { code: Code::Gap, retry_after_ms: 0, expected_seq: back_to, detail });
        }
        Ok(())
    }

    fn check_capacity(&mut self, now: Now, conn: ConnId, lane: Lane, first: bool, room: bool) -> Result<(), Refusal> {
        let l = &self.limits;
        let Some(att) = self.atts.get_mut(&conn) else { return Ok(()) };
        let rate = if first {
            att.ops.take(now.mono, l.op_rate_per_s, l.op_burst)
        } else {
            att.resends.take(now.mono, l.op_rate_per_s, l.resend_burst)
        };
        rate.map_err(|ms| Refusal::again(Code::Overloaded, ms, "too many ops per second on this connection"))?;
        if self.hold.lane_len(lane) >= l.inflight_per_lane {
            return Err(Refusal::again(
                Code::TooManyInflight,
                RETRY_MS,
                "too many unsettled ops (welcome.limits.inflight)",
            ));
        }
        if !room || self.hold.len() >= l.held_ops_max {
            return Err(Refusal::again(Code::Overloaded, RETRY_MS, "the gateway holds as many ops as it may"));
        }
        Ok(())
    }

    fn check_owner(&self) -> Result<bool, Refusal> {
        if self.binding.is_none() && self.route.is_some() {
            return Err(Refusal::again(Code::NoOwner, RETRY_MS, "nobody has room for this session yet"));
        }
        let hold_while_sick = !self.limits.store_down_hold.is_zero();
        match self.store {
            Store::Down { retry_after_ms } if !hold_while_sick => {
                Err(Refusal::again(Code::StoreUnavailable, retry_after_ms, "the store is down; nothing was written"))
            }
            Store::ReadOnly { retry_after_ms } => Err(Refusal::again(
                Code::StoreUnavailable,
                retry_after_ms,
                "read only until the owner's lease is renewed",
            )),
            _ => Ok(true),
        }
    }

    fn hold_op(
        &mut self,
        (now, arrival): (Now, &Arrival),
        conn: ConnId,
        op: client_frame::Op,
        (lane, digest): (Lane, bytes::Bytes),
        out: &mut Vec<Action>,
    ) {
        let Some(att) = self.atts.get(&conn) else { return };
        let (principal, participant) = (att.client.principal.clone(), att.client.participant.clone());
        let (sent_at_us, sent_ver) = self.delivered_before(&principal, arrival.at);
        let seq = op.op.as_ref().map_or(0, |o| o.seq);
        let attempt = op.attempt.max(1);
        let first = self.refused.take(now.mono, (lane, seq), (&principal, &digest));
        let stamp = first.unwrap_or_else(|| stamp(arrival, sent_at_us, sent_ver));
        let arrived_at = Wall(stamp.arrived_at_us);
        let bytes = encode_held(self.id.as_str(), op, (lane, &digest), &principal, &participant, stamp);
        out.push(Action::Held { ops: 1, bytes: i64::try_from(bytes.len()).unwrap_or(i64::MAX) });
        let waits = !self.is_open() || self.store != Store::Ok || self.hold.iter().any(|h| h.pending);
        self.hold.insert(Held {
            principal,
            participant,
            lane,
            seq,
            digest,
            bytes,
            arrived_at,
            arrived: now.mono,
            conn,
            attempt,
            sends: 0,
            pending: true,
        });
        if !waits {
            self.forward(now, lane, seq, out);
        }
    }

    fn nack_op(&self, conn: ConnId, op: &client_frame::Op, no: &Refusal, out: &mut Vec<Action>) {
        out.push(Action::Observe(Observation::Nacked(no.code)));
        let frame = server_frame::Nack {
            session: self.id.to_string(),
            op: op.op.clone(),
            code: no.code.into(),
            // an earlier copy of a resend may have gone through somewhere else
            applied: if op.attempt <= 1 { Applied::No } else { Applied::Unknown }.into(),
            retry_after_ms: no.retry_after_ms,
            expected_seq: no.expected_seq,
            detail: no.detail.into(),
            attempt: op.attempt.max(1),
            ..Default::default()
        };
        out.push(deliver(conn, F::Nack(frame)));
    }
}

fn att_principal(session: &Session, conn: ConnId) -> Option<std::sync::Arc<str>> {
    session.atts.get(&conn).map(|a| a.client.principal.clone())
}

/// The bytes that go to every owner, once.
fn encode_held(
    session: &str,
    op: client_frame::Op,
    (lane, digest): (Lane, &bytes::Bytes),
    principal: &str,
    participant: &str,
    stamp: proto::Stamp,
) -> bytes::Bytes {
    let seq = op.op.as_ref().map_or(0, |o| o.seq);
    message::encode(&proto::HeldOp {
        session: session.into(),
        op: Some(message::op_id(lane.as_bytes(), seq)),
        settled: op.settled,
        base_ver: op.base_ver,
        op_kind: op.op_kind,
        content: op.content,
        payload: op.payload,
        digest: digest.clone(),
        stamp: message::encode(&stamp),
        principal: principal.into(),
        participant: participant.into(),
        client_attempt: op.attempt.max(1),
    })
}

fn stamp(a: &Arrival, sent_at_us: u64, sent_ver: u64) -> proto::Stamp {
    proto::Stamp {
        arrived_at_us: a.at.0,
        sent_at_us,
        sent_ver,
        srtt_us: a.srtt_us,
        rtt_min_us: a.rtt_min_us,
        rtt_bound_us: a.rtt_bound_us,
        rtt_samples: a.rtt_samples,
        rtt_source: a.rtt_source,
        clock_id: a.clock_id,
        err_us: a.err_us,
    }
}
