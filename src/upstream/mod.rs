//! The link between gateway and owner.

/// The schema's gRPC services; their messages are [`holdfast_core::proto`].
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod rpc {
    tonic::include_proto!("holdfast.v1");
}
