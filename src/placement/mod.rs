//! Who owns a session: the directory in etcd, its followers and the service that writes it (design 8).

mod feed;
pub mod keys;
pub mod kv;
pub mod lease;
#[cfg(test)]
pub(crate) mod testing;
pub mod watch;
