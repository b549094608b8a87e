//! Placement against a real etcd.
