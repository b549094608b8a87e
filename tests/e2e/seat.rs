//! The client's part in one session: attach, ops, and the rules for sending them again (design 4.3).

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    client::{Client, Heard},
    process::LOOK_EVERY,
};

/// Codes after which the same op comes again (2xx of the schema).
const RETRY: [&str; 7] =
    ["STORE_UNAVAILABLE", "OVERLOADED", "NO_OWNER", "GAP", "TOO_MANY_INFLIGHT", "HOLD_EXPIRED", "TRY_AFTER_ATTACH"];

impl Client {
    /// Attaches with what it has seen, until the answer is `attached`.
    pub async fn attach(&mut self, session: &str) -> Value {
        for n in 1.. {
            let seen = json!({"epoch": self.seen.0, "ver": self.seen.1});
            self.say(&json!({"t": "attach", "session": session, "n": n, "seen": seen})).await;
            match self.hear_of(session, &["attached", "detached"]).await {
                frame if frame["t"] == "attached" => {
                    self.seq = self.seq.max(frame["lane_seq"].as_u64().unwrap_or(0));
                    return frame;
                }
                frame
                    if ["NO_OWNER", "OVERLOADED", "NO_SESSION"].contains(&frame["code"].as_str().unwrap())
                        && n < 200 =>
                {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                frame => panic!("attach refused: {frame}"),
            }
        }
        unreachable!()
    }

    /// The next frame about `session` of one of these types.
    pub async fn hear_of(&mut self, session: &str, types: &[&str]) -> Value {
        loop {
            match self.hear().await {
                Heard::Frame(f) if f["session"] == session && types.iter().any(|t| f["t"] == *t) => return f,
                Heard::Frame(_) => {}
                Heard::Closed(code, reason) => panic!("closed {code} {reason}"),
            }
        }
    }

    /// The next frame, whatever it is.
    pub async fn hear_any(&mut self) -> Value {
        match self.hear().await {
            Heard::Frame(frame) => frame,
            Heard::Closed(code, reason) => panic!("closed {code} {reason}"),
        }
    }

    /// Sends the next op of the lane; its seq.
    pub async fn op(&mut self, session: &str, data: &Value) -> u64 {
        self.seq += 1;
        self.op_as(session, self.seq, 1, data).await;
        self.seq
    }

    /// Sends an op under a chosen seq and attempt.
    pub async fn op_as(&mut self, session: &str, seq: u64, attempt: u64, data: &Value) {
        let base = self.seen.1;
        let op = json!({"t": "op", "session": session, "op": seq, "settled": self.settled + 1, "base": base, "attempt": attempt, "data": data});
        self.say(&op).await;
    }

    /// Sends an op until it is acknowledged, as the protocol says: again after a 2xx nack, else it waits. Its version.
    pub async fn settle(&mut self, session: &str, data: &Value) -> u64 {
        let seq = self.op(session, data).await;
        self.settled(session, seq, data).await
    }

    /// Waits until op `seq` is acknowledged; resends it after 2xx nacks.
    pub async fn settled(&mut self, session: &str, seq: u64, data: &Value) -> u64 {
        let mut attempt = 1;
        loop {
            let frame = self.hear_of(session, &["event", "ack", "nack", "detached"]).await;
            let about = frame["op"] == seq;
            match frame["t"].as_str().unwrap() {
                "event" | "ack" if about => {
                    self.settled = self.settled.max(seq);
                    return frame["ver"].as_u64().unwrap();
                }
                "nack" if about => {
                    assert!(RETRY.contains(&frame["code"].as_str().unwrap()), "final: {frame}");
                    let wait = frame["retry_after_ms"].as_u64().unwrap_or(0).max(25);
                    tokio::time::sleep(Duration::from_millis(wait)).await;
                    attempt += 1;
                    self.op_as(session, seq, attempt, data).await;
                }
                "detached" => {
                    self.attach(session).await;
                }
                _ => {}
            }
        }
    }
}
