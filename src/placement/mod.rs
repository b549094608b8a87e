//! Who owns a session: the directory in etcd, its followers and the service that writes it (design 8).

pub mod keys;
pub mod kv;
#[cfg(test)]
pub(crate) mod testing;
