//! One short line per message, for traces; and where a message belongs.

use holdfast_core::proto::{HeldOp, OpId, gateway_msg, owner_msg, server_frame};
use holdfast_core::session::Action;
use prost::Message;

use crate::store::Answer;

/// The op inside an envelope.
pub fn held(op: &gateway_msg::OpEnvelope) -> HeldOp {
    HeldOp::decode(op.held.clone()).unwrap_or_default()
}

/// Session and epoch of a message; no epoch = it wants no answer.
pub fn addressed(msg: &gateway_msg::M) -> Option<(String, Option<u64>)> {
    use gateway_msg::M;
    match msg {
        M::Op(m) => Some((held(m).session, Some(m.epoch))),
        M::Join(m) => Some((m.session.clone(), Some(m.epoch))),
        M::Attach(m) => Some((m.session.clone(), Some(m.epoch))),
        M::Pull(m) => Some((m.session.clone(), Some(m.epoch))),
        M::Reaction(m) => Some((m.session.clone(), None)),
        M::Leave(m) => Some((m.session.clone(), None)),
        M::Detach(m) => Some((m.session.clone(), None)),
        M::Presence(m) => Some((m.session.clone(), None)),
        M::Delivered(m) => Some((m.session.clone(), None)),
        M::ReplayDone(m) => Some((m.session.clone(), None)),
        _ => None,
    }
}

/// The session an owner's message speaks of; `None` = all.
pub fn spoken_of(msg: &owner_msg::M) -> Option<&str> {
    use owner_msg::M;
    Some(match msg {
        M::Event(m) => &m.session,
        M::Committed(m) => &m.session,
        M::Nack(m) => &m.session,
        M::Reaction(m) => &m.session,
        M::Joined(m) => &m.session,
        M::Attached(m) => &m.session,
        M::State(m) => &m.session,
        M::NotOwner(m) => &m.session,
        M::ArmDeadline(m) => &m.session,
        M::Closed(m) => &m.session,
        M::Kick(m) => &m.session,
        // the wiring gives it to the sessions it names
        M::Health(m) => m.sessions.first()?,
        _ => return None,
    })
}

fn id(op: Option<&OpId>) -> String {
    op.map_or_else(|| "-".to_owned(), |o| format!("{}:{}", lane(&o.lane), o.seq))
}

/// A lane as text.
pub fn lane(lane: &[u8]) -> String {
    String::from_utf8_lossy(lane).into_owned()
}

/// A message of a gateway.
pub fn up(msg: &gateway_msg::M) -> String {
    match msg {
        gateway_msg::M::Op(m) => {
            let h = held(m);
            format!(
                "Op {} {} epoch {} attempt {} settled {}",
                h.session,
                id(h.op.as_ref()),
                m.epoch,
                m.attempt,
                h.settled
            )
        }
        other => format!("{other:?}"),
    }
}

/// What a session at a gateway does.
pub fn action(action: &Action) -> String {
    match action {
        Action::Send { link, msg } => format!("to link {}: {}", link.0, up(msg)),
        other => format!("{other:?}"),
    }
}

/// A message of an owner.
pub fn down(msg: &owner_msg::M) -> String {
    use owner_msg::M;
    match msg {
        M::Event(m) => format!(
            "Event {} {:?} op {} to_att {} skip {}",
            m.session,
            m.at.unwrap_or_default(),
            id(m.op.as_ref()),
            m.to_att,
            m.skip_to
        ),
        M::Committed(m) => {
            format!("Committed {} epoch {} op {} ver {} dup {}", m.session, m.epoch, id(m.op.as_ref()), m.ver, m.dup)
        }
        M::Nack(m) => format!(
            "Nack {} epoch {} op {} {:?} {:?} expected {}",
            m.session,
            m.epoch,
            id(m.op.as_ref()),
            m.code(),
            m.applied(),
            m.expected_seq
        ),
        M::State(m) => {
            format!("State {} {:?} to_att {} lane_seq {}", m.session, m.at.unwrap_or_default(), m.to_att, m.lane_seq)
        }
        other => format!("{other:?}"),
    }
}

/// A frame to a client.
pub fn frame(frame: &server_frame::F) -> String {
    use server_frame::F;
    match frame {
        F::Event(m) => format!("event {:?} op {} skip {}", m.at.unwrap_or_default(), id(m.op.as_ref()), m.skip_to),
        F::Ack(m) => format!("ack {} {:?} dup {}", id(m.op.as_ref()), m.at.unwrap_or_default(), m.dup),
        F::Nack(m) => format!(
            "nack {} {:?} {:?} attempt {} expected {} retry {}",
            id(m.op.as_ref()),
            m.code(),
            m.applied(),
            m.attempt,
            m.expected_seq,
            m.retry_after_ms
        ),
        F::Snapshot(m) => format!(
            "snapshot {:?} lane_seq {} rejected {:?} reason {}",
            m.at.unwrap_or_default(),
            m.lane_seq,
            m.rejected,
            m.reason
        ),
        other => format!("{other:?}"),
    }
}

/// An answer of the store.
pub fn answer(answer: &Answer) -> String {
    match answer {
        Answer::Loaded(Ok(l)) => format!(
            "loaded rev {} epoch {} ver {}",
            l.rev,
            l.header.as_ref().map_or(0, |h| h.epoch),
            l.header.as_ref().map_or(0, |h| h.ver)
        ),
        Answer::Loaded(Err(e)) => format!("not loaded: {e:?}"),
        Answer::Written(w) => format!("{w:?}"),
    }
}
