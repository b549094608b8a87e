//! The wire schema's messages, generated from `src/upstream/holdfast.proto`, and the record's.

// the comments of a .proto are not rustdoc
#![allow(missing_docs, clippy::all, clippy::pedantic, rustdoc::all)]

include!(concat!(env!("OUT_DIR"), "/holdfast.v1.rs"));

/// What an owner stores, generated from `record.proto`.
pub mod record {
    include!(concat!(env!("OUT_DIR"), "/holdfast.record.v1.rs"));
}
