//! One session's authority.

use std::sync::Arc;

use super::{App, AuthorityConfig, Effect, Loaded, StoreError, Written};
use crate::{
    id::{LinkId, SessionId},
    proto::gateway_msg,
    time::{Mono, Now},
};

/// The owner's half of one session.
#[derive(Debug)]
pub struct Authority<A: App> {
    epoch: u64,
    app: A,
}

#[allow(unused_variables, missing_docs, clippy::todo, clippy::needless_pass_by_value)]
impl<A: App> Authority<A> {
    pub fn new(session: SessionId, kind: &str, epoch: u64, config: Arc<AuthorityConfig>, app: A) -> Self {
        Self { epoch, app }
    }
    pub fn start(&mut self, now: Now, out: &mut Vec<Effect>) {
        todo!()
    }
    /// Unowned time before this assignment, microseconds (design 5.5); call before `start`.
    pub fn set_outage(&mut self, outage_us: u64) {
        todo!()
    }
    pub fn handle_loaded(&mut self, now: Now, loaded: Result<Loaded, StoreError>, out: &mut Vec<Effect>) {
        todo!()
    }
    pub fn handle_written(&mut self, now: Now, written: Written, out: &mut Vec<Effect>) {
        todo!()
    }
    pub fn handle_link_msg(&mut self, now: Now, link: LinkId, msg: gateway_msg::M, out: &mut Vec<Effect>) {
        todo!()
    }
    pub fn handle_link_down(&mut self, now: Now, link: LinkId, out: &mut Vec<Effect>) {
        todo!()
    }
    pub fn handle_assigned(&mut self, now: Now, epoch: u64, out: &mut Vec<Effect>) {
        todo!()
    }
    pub fn handle_lease(&mut self, now: Now, held: bool, out: &mut Vec<Effect>) {
        todo!()
    }
    pub fn handle_drain(&mut self, now: Now, out: &mut Vec<Effect>) {
        todo!()
    }
    pub fn handle_timeout(&mut self, now: Now, out: &mut Vec<Effect>) {
        todo!()
    }
    pub fn poll_timeout(&self) -> Option<Mono> {
        todo!()
    }
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
    pub fn ver(&self) -> u64 {
        todo!()
    }
    pub fn app(&self) -> &A {
        &self.app
    }
}
