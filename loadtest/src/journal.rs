//! What a client did and heard, one line each: the evidence the verifier judges by.
//!
//! A journal is JSON Lines, so that anybody's client can write one. Times are Unix microseconds on the writer's clock.

use std::io::{BufRead, Write};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// What happened. Written in lower case with underscores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// An op left the client; `intended_us` is when it was due, `attempt` counts from 1.
    Sent,
    /// The event that carries this client's op id: the acknowledgement.
    Echo,
    /// An `ack` frame.
    Ack,
    /// `attached` or `snapshot` said the op is decided (`code` empty: committed; else rejected).
    LaneSeq,
    Nack,
    /// An event of somebody else, or a skip up to `to`.
    Event,
    /// A snapshot: sets the version, downwards too.
    Snapshot,
    Attached,
    Detached,
    Status,
    ReactionSent,
    Reaction,
    /// A frame of an epoch below the highest this client had seen.
    Stale,
    /// The client asked for what it missed.
    Resync,
    /// An attempt to connect begins; `code` is the gateway's address.
    Dial,
    /// The WebSocket is open; nothing is said yet.
    Connected,
    /// Admitted; `code` is the gateway's name, `server_us` its clock.
    Welcome,
    /// The attempt ended without a welcome; `code` says how (`slot`, `full`, `drain`, a close code …), `to` is the time
    /// the client was told to wait, ms.
    Refused,
    /// The gateway will go; `to` is when to leave it, ms.
    Goaway,
    /// The connection ended; `code` is the close code.
    Closed,
    /// The client was sent away for good.
    Stopped,
    /// The record went back behind this settled op: the app is told to check it (`why: diverged`); `ver` is the version
    /// it had, or the newest it can have had.
    Check,
    /// A sealed copy of the stamp, base64url, in `code`.
    Receipt,
}

/// One line. Numbers that do not apply are 0 and left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub t_us: u64,
    pub client: Arc<str>,
    /// `sub` of the client's token and its lane (hex): with `op` they are the op's id in the session.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub lane: Arc<str>,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub session: Arc<str>,
    pub what: What,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub op: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub intended_us: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ver: u64,
    /// Last version of a skip.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub to: u64,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub code: Arc<str>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub server_us: u64,
    /// `no` or `unknown`, of a nack.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub applied: Arc<str>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Line {
    /// A line with nothing but who, when and what.
    pub fn new(t_us: u64, client: &Arc<str>, what: What) -> Self {
        let none: Arc<str> = Arc::from("");
        Line {
            t_us,
            client: client.clone(),
            lane: none.clone(),
            session: none.clone(),
            what,
            op: 0,
            attempt: 0,
            intended_us: 0,
            epoch: 0,
            ver: 0,
            to: 0,
            code: none.clone(),
            server_us: 0,
            applied: none,
        }
    }
}

/// Writes lines as JSON Lines.
pub fn write(out: &mut impl Write, lines: &[Line]) -> anyhow::Result<()> {
    for line in lines {
        serde_json::to_writer(&mut *out, line)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Reads JSON Lines; an error names the line.
pub fn read(input: impl BufRead) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (i, text) in input.lines().enumerate() {
        let text = text?;
        if !text.trim().is_empty() {
            lines.push(serde_json::from_str(&text).map_err(|e| anyhow::anyhow!("line {}: {e}", i + 1))?);
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_survives_its_file() {
        let client: Arc<str> = Arc::from("c1");
        let mut line = Line::new(17, &client, What::Nack);
        (line.op, line.code, line.applied) = (3, Arc::from("GAP"), Arc::from("no"));
        let mut file = Vec::new();
        write(&mut file, &[line.clone()]).unwrap();
        assert_eq!(read(&file[..]).unwrap(), vec![line]);
        assert!(read(&b"{\"t_us\":1}\n"[..]).unwrap_err().to_string().starts_with("line 1"));
    }
}
