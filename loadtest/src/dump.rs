//! The record, read straight from the store: a range over `/hfs/`, decoded by `record`, kept as a file of JSON Lines.

use std::collections::HashMap;
use std::io::{BufRead, Write};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as B64;
use etcd_client::{Client, GetOptions};
use prost::Message as _;
use serde::{Deserialize, Serialize};

use crate::record::{Entry, Header, Lane};

/// Keys per page: at most ~2 KiB each, so a page stays far below the decode limit of 64 MiB.
const PAGE: i64 = 5_000;
const PREFIX: &str = "/hfs/";

/// One key of the store as it was.
#[derive(Clone, Serialize, Deserialize)]
pub struct Raw {
    pub key: String,
    /// base64.
    pub value: String,
    pub create_rev: i64,
}

/// All that is known of one session.
#[derive(Default, Clone)]
pub struct Recorded {
    pub header: Header,
    pub entries: Vec<Stored>,
    /// By (principal, lane in hex).
    pub lanes: HashMap<(String, String), Lane>,
}

/// An entry and the store's revision that made it.
#[derive(Clone)]
pub struct Stored {
    pub entry: Entry,
    pub create_rev: i64,
}

/// The decoded record, by session.
pub type Record = HashMap<String, Recorded>;

/// Reads everything under `/hfs/` at one revision.
pub async fn read_store(endpoint: &str) -> anyhow::Result<Vec<Raw>> {
    let mut client = Client::connect([endpoint], None).await.context("the store")?;
    let mut from = PREFIX.as_bytes().to_vec();
    let end = b"/hfs0".to_vec();
    let mut raws = Vec::new();
    let mut rev = 0;
    loop {
        let options = GetOptions::new().with_range(end.clone()).with_limit(PAGE).with_revision(rev);
        let page = client.get(from.clone(), Some(options)).await?;
        rev = page.header().map_or(0, etcd_client::ResponseHeader::revision);
        for kv in page.kvs() {
            raws.push(Raw {
                key: String::from_utf8_lossy(kv.key()).into_owned(),
                value: B64.encode(kv.value()),
                create_rev: kv.create_revision(),
            });
        }
        match page.kvs().last() {
            Some(last) if page.more() => {
                from = last.key().to_vec();
                from.push(0);
            }
            _ => return Ok(raws),
        }
    }
}

/// Writes a dump file.
pub fn write(out: &mut impl Write, raws: &[Raw]) -> anyhow::Result<()> {
    for raw in raws {
        serde_json::to_writer(&mut *out, raw)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Reads a dump file.
pub fn read(input: impl BufRead) -> anyhow::Result<Vec<Raw>> {
    input.lines().map(|l| Ok(serde_json::from_str(&l?)?)).collect()
}

/// Decodes keys and values; an unknown key or an undecodable value is an error: a judge must not skip evidence.
pub fn decode(raws: &[Raw]) -> anyhow::Result<Record> {
    let mut record = Record::new();
    for raw in raws {
        let rest = raw.key.strip_prefix(PREFIX).with_context(|| format!("not a record key: {}", raw.key))?;
        let mut parts = rest.split('/');
        let session = parts.next().unwrap_or_default().to_owned();
        let value = B64.decode(&raw.value)?;
        let of = record.entry(session).or_default();
        match (parts.next(), parts.next(), parts.next()) {
            (Some("h"), None, None) => of.header = Header::decode(&value[..])?,
            (Some("c"), None, None) => {}
            (Some("e"), Some(_), None) => {
                of.entries.push(Stored { entry: Entry::decode(&value[..])?, create_rev: raw.create_rev });
            }
            (Some("l"), Some(principal), Some(lane)) => {
                let name = unhex(principal).with_context(|| format!("principal in {}", raw.key))?;
                let name = String::from_utf8(name)?;
                of.lanes.insert((name, lane.to_ascii_lowercase()), Lane::decode(&value[..])?);
            }
            _ => anyhow::bail!("unknown record key {}", raw.key),
        }
    }
    for of in record.values_mut() {
        of.entries.sort_by_key(|s| s.entry.ver);
    }
    Ok(record)
}

/// Bytes as lower case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(text.get(i..i + 2)?, 16).ok()).collect()
}
