//! A shared text. Ops are `{"ins":[pos,"text"]}` and `{"del":[pos,n]}`; positions and lengths count Unicode scalar values in
//! the text at the op's `base` version, whatever the sender has under way. The event is the edit as it was done: in the text
//! just before it. A deletion around somebody's insertion becomes several events, the rightmost first.
//!
//! The geometry of the newest [`TAIL_EDITS`] edits is kept. An op with an older base, or one from the future (the record went
//! back), is answered `BASE_CONFLICT`: resync, then a new op.

use std::collections::VecDeque;

use bytes::Bytes;
use holdfast_core::{
    proto::{Code, Content, record::Entry},
    record::{App, Draft, OpView, Reject},
    time::Now,
};
use serde::{Deserialize, Serialize};

use super::{
    actor, code,
    edit::{Edit, PIECES_MAX, byte_at},
    no_form, payload,
};

/// Most edits over which an op can be moved: as many as the record keeps. 24 bytes each, 12 KiB a document.
pub const TAIL_EDITS: usize = 512;
/// Largest text in bytes of UTF-8. JSON at most doubles it (control characters that take six bytes are refused), so that a
/// snapshot fits a client's queue of 256 KiB.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;

/// State of a document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    ver: u64,
    text: String,
    /// Characters in `text`.
    chars: usize,
    /// Edits up to `ver`, oldest first, one a version.
    tail: VecDeque<(u64, Edit)>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    ins: Option<(u64, String)>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    del: Option<(u64, u64)>,
}

#[derive(Serialize)]
struct Shown<'a> {
    ver: u64,
    text: &'a str,
}

impl Document {
    /// Edits after `base`, oldest first, and the text's length then.
    fn since(&self, base: u64) -> Result<(Vec<Edit>, usize), Reject> {
        let oldest = self.tail.front().map_or(self.ver, |(ver, _)| ver - 1);
        if !(oldest..=self.ver).contains(&base) {
            let detail =
                format!("base: {base} is outside {oldest}..={}, the versions an edit can start from", self.ver);
            return Err(Reject { code: Code::BaseConflict, app_code: 0, detail });
        }
        let later: Vec<Edit> = self.tail.iter().filter(|(ver, _)| *ver > base).map(|(_, edit)| *edit).collect();
        let length = later.iter().rev().fold(self.chars, |length, edit| edit.length_before(length));
        Ok((later, length))
    }

    fn insert(&self, base: u64, at: u64, text: String) -> Result<Vec<Change>, Reject> {
        let (later, length) = self.since(base)?;
        let at = position("ins[0]", at, length)?;
        check_text(&text)?;
        if self.text.len() + text.len() > TEXT_BYTES_MAX {
            let (have, more) = (self.text.len(), text.len());
            let detail = format!("ins[1]: {have} + {more} bytes; a document has at most {TEXT_BYTES_MAX}");
            return Err(Reject::app(code::TOO_MUCH, detail));
        }
        let at = later.iter().fold(at, |point, edit| edit.move_point(point));
        Ok(vec![Change { ins: Some((at as u64, text)), del: None }])
    }

    fn delete(&self, base: u64, at: u64, n: u64) -> Result<Vec<Change>, Reject> {
        let (later, length) = self.since(base)?;
        let from = position("del[0]", at, length)?;
        let to = position("del[0] + del[1]", at.saturating_add(n), length)?;
        if n == 0 {
            return Err(Reject::app(code::BAD_PAYLOAD, "del[1]: 0; at least 1 is required"));
        }
        let mut ranges = vec![(from, to)];
        for edit in &later {
            ranges = edit.move_ranges(&ranges);
            if ranges.len() > PIECES_MAX {
                let detail = format!("del: in more than {PIECES_MAX} pieces after later edits");
                return Err(Reject { code: Code::BaseConflict, app_code: 0, detail });
            }
        }
        if ranges.is_empty() {
            // others deleted it all: the op still enters the record, as an edit of nothing
            let point = later.iter().fold(from, |point, edit| edit.move_point(point));
            ranges.push((point, point));
        }
        let piece = |&(from, to): &(usize, usize)| Change { ins: None, del: Some((from as u64, (to - from) as u64)) };
        Ok(ranges.iter().rev().map(piece).collect())
    }

    /// Does a recorded edit; `None` if it does not fit the text.
    fn change(&mut self, change: Change) -> Option<Edit> {
        match change {
            Change { ins: Some((at, text)), del: None } => {
                let at = usize::try_from(at).ok().filter(|at| *at <= self.chars)?;
                self.text.insert_str(byte_at(&self.text, at), &text);
                Some(Edit::Ins { at, len: text.chars().count() })
            }
            Change { ins: None, del: Some((at, n)) } => {
                let (at, len) = (usize::try_from(at).ok()?, usize::try_from(n).ok()?);
                at.checked_add(len).filter(|end| *end <= self.chars)?;
                let from = byte_at(&self.text, at);
                let to = from + byte_at(&self.text[from..], len);
                self.text.replace_range(from..to, "");
                Some(Edit::Del { at, len })
            }
            _ => None,
        }
    }
}

impl App for Document {
    fn decide(&mut self, op: &OpView<'_>, _now: Now) -> Result<Vec<Draft>, Reject> {
        let base = op.held.base_ver;
        let changes = match payload(op.held)? {
            Change { ins: Some((at, text)), del: None } => self.insert(base, at, text)?,
            Change { ins: None, del: Some((at, n)) } => self.delete(base, at, n)?,
            _ => return Err(no_form(r#"{"ins":[pos,"text"]}, {"del":[pos,n]}"#, op.held)),
        };
        let by = actor(op.held)?;
        let draft = |change: &Change| Draft {
            payload: serde_json::to_vec(change).unwrap_or_default().into(),
            content: Content::Json,
            actor: by.to_owned(),
            ..Draft::default()
        };
        Ok(changes.iter().map(draft).collect())
    }

    fn apply(&mut self, entry: &Entry) {
        self.ver = entry.ver;
        let edit = serde_json::from_slice(&entry.payload).ok().and_then(|change| self.change(change));
        let Some(edit) = edit else {
            tracing::error!(ver = entry.ver, "recorded edit of a document cannot be done");
            self.tail.clear();
            return;
        };
        match edit {
            Edit::Ins { len, .. } => self.chars += len,
            Edit::Del { len, .. } => self.chars -= len,
        }
        self.tail.push_back((entry.ver, edit));
        if self.tail.len() > TAIL_EDITS {
            self.tail.pop_front();
        }
    }

    fn snapshot(&self) -> (Content, Bytes) {
        let shown = Shown { ver: self.ver, text: &self.text };
        (Content::Json, serde_json::to_vec(&shown).unwrap_or_default().into())
    }

    fn checkpoint(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), String> {
        let restored: Self = match state {
            [] => Self::default(),
            state => serde_json::from_slice(state).map_err(|e| format!("document: {e}"))?,
        };
        let dense =
            restored.tail.iter().rev().zip((0..=restored.ver).rev()).all(|((ver, _), expected)| *ver == expected);
        if !dense || restored.chars != restored.text.chars().count() {
            return Err(format!("document: text and tail of ver {} do not agree", restored.ver));
        }
        *self = restored;
        Ok(())
    }
}

fn position(field: &str, value: u64, length: usize) -> Result<usize, Reject> {
    usize::try_from(value).ok().filter(|at| *at <= length).ok_or_else(|| {
        let detail = format!("{field}: {value}; the text at base has {length} characters");
        Reject::app(code::OUT_OF_RANGE, detail)
    })
}

fn check_text(text: &str) -> Result<(), Reject> {
    let odd = text.chars().find(|c| c.is_ascii_control() && !matches!(c, '\n' | '\t' | '\r'));
    match odd {
        _ if text.is_empty() => {
            Err(Reject::app(code::BAD_PAYLOAD, "ins[1]: empty; at least one character is required"))
        }
        Some(c) => {
            let detail =
                format!("ins[1]: control character U+{:04X}; only line feed, return and tab are allowed", u32::from(c));
            Err(Reject::app(code::BAD_PAYLOAD, detail))
        }
        None => Ok(()),
    }
}
