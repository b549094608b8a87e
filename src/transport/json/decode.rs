//! Text to client frames.

use std::borrow::Cow;

use bytes::Bytes;
use holdfast_core::proto::{Content, OpId, Pos, client_frame as c};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::from_b64;
use crate::transport::Decoded;

/// Every field any client frame may have; what a frame does not use is ignored, and so are names not listed.
#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow)]
    t: Cow<'a, str>,
    #[serde(borrow)]
    session: Option<Cow<'a, str>>,
    #[serde(borrow)]
    token: Option<Cow<'a, str>>,
    #[serde(borrow)]
    lane: Option<Cow<'a, str>>,
    conn_seq: Option<u32>,
    #[serde(borrow)]
    client: Option<Cow<'a, str>>,
    features: Option<Vec<String>>,
    attempt: Option<u32>,
    #[serde(borrow)]
    ticket: Option<Cow<'a, str>>,
    #[serde(borrow)]
    resume: Option<Cow<'a, str>>,
    #[serde(borrow)]
    receipt: Option<Cow<'a, str>>,
    n: Option<u64>,
    seen: Option<Seen>,
    #[serde(borrow)]
    role: Option<Cow<'a, str>>,
    #[serde(borrow)]
    op: Option<&'a RawValue>,
    settled: Option<u64>,
    base: Option<u64>,
    kind: Option<u32>,
    epoch: Option<u64>,
    #[serde(borrow)]
    class: Option<Cow<'a, str>>,
    snapshot: Option<bool>,
    code: Option<u32>,
    #[serde(borrow, default, deserialize_with = "present")]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    b64: Option<Cow<'a, str>>,
}

#[derive(Deserialize, Default)]
struct Seen {
    #[serde(default)]
    epoch: u64,
    #[serde(default)]
    ver: u64,
}

/// `null` is a payload, not an absent one.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(d: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(d).map(Some)
}

/// Mistakes after which the rest of a message is not read: looking for the end of each could cost a scan of all of it
/// (10 x 1 MiB), and the 10th in a minute ends the connection anyway.
const MISTAKES_MAX: usize = 10;

/// The frames of one text message, in order. After a mistake reading goes on behind the next LF.
pub fn decode(text: &str, frame_bytes_max: usize, mut each: impl FnMut(Decoded)) {
    let mut rest = text;
    let mut mistakes = 0;
    while mistakes < MISTAKES_MAX {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return;
        }
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>();
        match values.next() {
            Some(Ok(raw)) => {
                let used = values.byte_offset();
                each(if used > frame_bytes_max { Decoded::TooLarge(used) } else { one(raw.get()) });
                rest = &rest[used..];
            }
            Some(Err(e)) => {
                mistakes += 1;
                each(Decoded::Bad(format!("not JSON: {e}")));
                rest = rest.split_once('\n').map_or("", |(_, behind)| behind);
            }
            None => return,
        }
    }
}

fn one(text: &str) -> Decoded {
    let wire: Wire<'_> = match serde_json::from_str(text) {
        Ok(wire) => wire,
        Err(e) => return Decoded::Bad(e.to_string()),
    };
    match frame(&wire) {
        Ok(Some(f)) => Decoded::Frame(f),
        Ok(None) => Decoded::Unknown(wire.t.chars().take(32).collect()),
        Err(detail) => Decoded::Bad(format!("{}: {detail}", wire.t)),
    }
}

fn frame(w: &Wire<'_>) -> Result<Option<c::F>, String> {
    let session = || w.session.as_deref().map(str::to_owned).ok_or_else(|| "session is missing".to_owned());
    Ok(Some(match &*w.t {
        "hello" => c::F::Hello(hello(w)?),
        "attach" => c::F::Attach(c::Attach {
            session: session()?,
            n: small(w.n, "n")?,
            last_seen: Some(seen(w)),
            token: text(w.token.as_ref()),
            lane: bytes(w.lane.as_ref(), "lane")?,
            role: role(w)?,
        }),
        "detach" => c::F::Detach(c::Detach { session: session()? }),
        "op" => c::F::Op(op(w, session()?)?),
        "reaction" => {
            let (content, payload) = payload(w)?;
            let (epoch, class) = (w.epoch.unwrap_or(0), text(w.class.as_ref()));
            c::F::Reaction(c::Reaction { session: session()?, epoch, class, content: content.into(), payload })
        }
        "resync" => c::F::Resync(c::Resync {
            session: session()?,
            last_seen: Some(seen(w)),
            snapshot: w.snapshot.unwrap_or(false),
        }),
        "ping" => c::F::Ping(c::Ping { n: w.n.unwrap_or(0) }),
        "pong" => c::F::Pong(c::Pong { n: w.n.unwrap_or(0) }),
        "auth" => c::F::Auth(c::Auth { token: text(w.token.as_ref()) }),
        "bye" => c::F::Bye(c::Bye { code: w.code.unwrap_or(0) }),
        _ => return Ok(None),
    }))
}

fn hello(w: &Wire<'_>) -> Result<c::Hello, String> {
    Ok(c::Hello {
        token: text(w.token.as_ref()),
        lane: bytes(w.lane.as_ref(), "lane")?,
        conn_seq: w.conn_seq.unwrap_or(0),
        client: text(w.client.as_ref()),
        features: w.features.clone().unwrap_or_default(),
        ticket: bytes(w.ticket.as_ref(), "ticket")?,
        attempt: w.attempt.unwrap_or(0),
        resume: bytes(w.resume.as_ref(), "resume")?,
    })
}

fn op(w: &Wire<'_>, session: String) -> Result<c::Op, String> {
    let (content, payload) = payload(w)?;
    Ok(c::Op {
        session,
        op: Some(op_id(w.op.ok_or("op is missing")?)?),
        settled: w.settled.unwrap_or(0),
        base_ver: w.base.unwrap_or(0),
        op_kind: w.kind.unwrap_or(0),
        content: content.into(),
        payload,
        receipt: bytes(w.receipt.as_ref(), "receipt")?,
        attempt: w.attempt.unwrap_or(1).max(1),
    })
}

/// A number (own lane) or `"lane:seq"`.
fn op_id(raw: &RawValue) -> Result<OpId, String> {
    const HINT: &str = "op: a number from 1, or \"lane:seq\" with the lane in base64url";
    let (lane, seq) = if raw.get().starts_with('"') {
        let id: Cow<'_, str> = serde_json::from_str(raw.get()).map_err(|_| HINT)?;
        let (lane, seq) = id.split_once(':').ok_or(HINT)?;
        let lane = from_b64(lane).filter(|l| !l.is_empty()).ok_or(HINT)?;
        (Bytes::from(lane), seq.parse().map_err(|_| HINT)?)
    } else {
        (Bytes::new(), raw.get().parse::<u64>().map_err(|_| HINT)?)
    };
    if seq == 0 { Err(HINT.to_owned()) } else { Ok(OpId { lane, seq }) }
}

fn payload(w: &Wire<'_>) -> Result<(Content, Bytes), String> {
    match (w.data, &w.b64) {
        (Some(_), Some(_)) => Err("data and b64 are both present; one payload is allowed".into()),
        (Some(raw), None) => match raw.get().bytes().position(|b| matches!(b, b'\r' | b'\n')) {
            Some(at) => Err(format!(
                "data: raw CR or LF at byte {at}; write \\n inside strings and no line breaks between values"
            )),
            None => Ok((Content::Json, Bytes::copy_from_slice(raw.get().as_bytes()))),
        },
        (None, Some(_)) => Ok((Content::Bytes, bytes(w.b64.as_ref(), "b64")?)),
        (None, None) => Ok((Content::Unspecified, Bytes::new())),
    }
}

fn role(w: &Wire<'_>) -> Result<u32, String> {
    match w.role.as_deref() {
        None => Ok(0),
        Some("participant") => Ok(1),
        Some("spectator") => Ok(2),
        Some(_) => Err("role: \"participant\" or \"spectator\"".into()),
    }
}

fn seen(w: &Wire<'_>) -> Pos {
    w.seen.as_ref().map_or_else(Pos::default, |s| Pos { epoch: s.epoch, ver: s.ver })
}

fn text(field: Option<&Cow<'_, str>>) -> String {
    field.map(|s| s.as_ref().to_owned()).unwrap_or_default()
}

fn bytes(field: Option<&Cow<'_, str>>, name: &str) -> Result<Bytes, String> {
    field.map_or_else(
        || Ok(Bytes::new()),
        |s| from_b64(s).map(Bytes::from).ok_or_else(|| format!("{name}: not base64url")),
    )
}

fn small(n: Option<u64>, name: &str) -> Result<u32, String> {
    u32::try_from(n.unwrap_or(0)).map_err(|_| format!("{name}: above {}", u32::MAX))
}
