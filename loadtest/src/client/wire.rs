//! The JSON form of the client protocol (design 4.2), written from the page and not from the server.

use std::borrow::Cow;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64URL;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::reconnect::Hint;

/// Any server frame: absent fields are their zero.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Frame<'a> {
    #[serde(borrow)]
    pub t: Cow<'a, str>,
    #[serde(borrow)]
    pub session: Cow<'a, str>,
    pub n: u64,
    pub epoch: u64,
    pub ver: u64,
    pub to: u64,
    /// A number for this connection's own lane, a string `lane:seq` for another one.
    #[serde(borrow)]
    pub op: Option<&'a RawValue>,
    #[serde(borrow)]
    pub data: Option<&'a RawValue>,
    pub lane_seq: u64,
    #[serde(borrow)]
    pub rejected: Vec<Rejected<'a>>,
    #[serde(borrow)]
    pub code: Option<&'a RawValue>,
    #[serde(borrow)]
    pub applied: Cow<'a, str>,
    pub attempt: u64,
    pub retry_after_ms: u64,
    pub expected: u64,
    #[serde(borrow)]
    pub detail: Cow<'a, str>,
    #[serde(borrow)]
    pub receipt: Cow<'a, str>,
    #[serde(borrow)]
    pub state: Cow<'a, str>,
    #[serde(borrow)]
    pub why: Cow<'a, str>,
    #[serde(borrow)]
    pub resume: Cow<'a, str>,
    pub delay_ms: u64,
    #[serde(borrow)]
    pub ticket: Cow<'a, str>,
    #[serde(borrow)]
    pub gateway: Cow<'a, str>,
    /// The server's clock, of a welcome.
    pub now_us: u64,
    pub dead_ms: u64,
    pub reconnect: Option<Hint>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Rejected<'a> {
    pub op: u64,
    #[serde(borrow)]
    pub code: Cow<'a, str>,
}

impl Frame<'_> {
    /// The seq of this connection's own op, 0 if the frame names none of them.
    pub fn own_op(&self) -> u64 {
        self.op.and_then(|raw| raw.get().parse().ok()).unwrap_or(0)
    }

    /// A code word, or the number of a goaway as text.
    pub fn code(&self) -> &str {
        self.code.map_or("", |raw| raw.get().trim_matches('"'))
    }
}

/// First frame of a connection.
pub fn hello(token: &str, lane: &[u8], conn_seq: u64, attempt: u64) -> String {
    format!(
        r#"{{"t":"hello","token":"{token}","lane":"{}","conn_seq":{conn_seq},"client":"loadtest/0.1","features":["receipts"],"attempt":{attempt}}}"#,
        B64URL.encode(lane)
    )
}

/// `seen` is (epoch, ver).
pub fn attach(session: &str, n: u64, seen: (u64, u64)) -> String {
    let (epoch, ver) = seen;
    format!(
        r#"{{"t":"attach","session":"{session}","n":{n},"seen":{{"epoch":{epoch},"ver":{ver}}},"role":"participant"}}"#
    )
}

pub fn resync(session: &str, seen: (u64, u64)) -> String {
    let (epoch, ver) = seen;
    format!(r#"{{"t":"resync","session":"{session}","seen":{{"epoch":{epoch},"ver":{ver}}},"snapshot":false}}"#)
}

/// What an op frame says besides its payload.
pub struct OpHead<'a> {
    pub session: &'a str,
    pub op: u64,
    pub settled: u64,
    pub base: u64,
    pub attempt: u64,
    pub receipt: &'a str,
}

pub fn op(head: &OpHead<'_>, data: &str) -> String {
    let OpHead { session, op, settled, base, attempt, receipt } = head;
    let mut text = format!(
        r#"{{"t":"op","session":"{session}","op":{op},"settled":{settled},"base":{base},"kind":0,"attempt":{attempt},"#
    );
    if !receipt.is_empty() {
        let _ = write!(text, r#""receipt":"{receipt}","#);
    }
    let _ = write!(text, r#""data":{data}}}"#);
    text
}

/// Carries the time of sending, so that whoever hears it knows its age.
pub fn reaction(session: &str, epoch: u64, class: &str, now_us: u64) -> String {
    format!(r#"{{"t":"reaction","session":"{session}","epoch":{epoch},"class":"{class}","data":{{"at_us":{now_us}}}}}"#)
}

pub fn bye() -> String {
    r#"{"t":"bye"}"#.to_owned()
}

pub fn pong(n: u64) -> String {
    format!(r#"{{"t":"pong","n":{n}}}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_the_design_are_read() {
        let text = r#"{"t":"event","session":"g_8Kd2","epoch":8,"ver":42,"op":12,"by":"white","at_us":5,"data":{"move":"e2e4"}}"#;
        let frame: Frame = serde_json::from_str(text).unwrap();
        assert_eq!((frame.own_op(), frame.ver, frame.data.unwrap().get()), (12, 42, r#"{"move":"e2e4"}"#));
        let text = r#"{"t":"attached","session":"s","n":1,"epoch":8,"ver":43,"resume":"events","lane_seq":11,"rejected":[{"op":10,"code":"REJECTED","app_code":3}],"role":"participant","stamped":true,"hold_ttl_ms":13000}"#;
        let frame: Frame = serde_json::from_str(text).unwrap();
        assert_eq!((frame.lane_seq, frame.rejected[0].op), (11, 10));
        let frame: Frame = serde_json::from_str(r#"{"t":"event","session":"s","op":"jxI0:4","ver":1}"#).unwrap();
        assert_eq!(frame.own_op(), 0);
        let frame: Frame = serde_json::from_str(r#"{"t":"goaway","code":1012,"delay_ms":7}"#).unwrap();
        assert_eq!((frame.code(), frame.delay_ms), ("1012", 7));
        let text = r#"{"t":"welcome","resume":"x","features":[],"limits":{},"gateway":"gw-1","now_us":9,"dead_ms":6000,"reconnect":{"spread_ms":4000,"rank_ppm":731204,"base_ms":250,"cap_ms":8000}}"#;
        let frame: Frame = serde_json::from_str(text).unwrap();
        let hint = Hint { spread_ms: 4_000, rank_ppm: 731_204, base_ms: 250, cap_ms: 8_000 };
        assert_eq!((&*frame.t, frame.dead_ms, frame.reconnect), ("welcome", 6_000, Some(hint)));
    }

    #[test]
    fn ops_are_valid_json() {
        let head = OpHead { session: "s", op: 2, settled: 1, base: 0, attempt: 2, receipt: "AQ" };
        let value: serde_json::Value = serde_json::from_str(&op(&head, r#"{"move":"e2e4"}"#)).unwrap();
        assert_eq!(value["receipt"], "AQ");
        for text in [
            attach("s", 1, (0, 0)),
            resync("s", (1, 2)),
            reaction("s", 1, "applause", 3),
            pong(1),
            bye(),
            hello("t", b"12345678", 1, 0),
        ] {
            serde_json::from_str::<serde_json::Value>(&text).unwrap();
        }
    }
}
