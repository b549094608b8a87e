//! The wire schema's messages, generated from `src/upstream/holdfast.proto`, and the record's.

#![allow(missing_docs, clippy::all, clippy::pedantic)]

include!(concat!(env!("OUT_DIR"), "/holdfast.v1.rs"));

/// What an owner stores, generated from `record.proto`.
pub mod record {
    include!(concat!(env!("OUT_DIR"), "/holdfast.record.v1.rs"));
}
