//! What links say: up, down, and messages of owners.

use std::{cmp::Reverse, collections::HashMap, sync::Arc, sync::atomic::Ordering, time::Duration};

use futures_util::future::BoxFuture;
use holdfast_core::{
    id::{Boot, SessionId},
    proto::owner_msg::M,
};

use super::{Sessions, entry::Entry};
use crate::upstream::{
    LinkEvents,
    link::{LinkTx, QUEUE_MSGS},
};

/// Sessions handled before other tasks get a turn.
const SESSIONS_PER_TURN: usize = 32;
/// A session is replayed only while this much of the link's queue is free: half, so that what live sessions send
/// beside the replay, and one session with 1,024 held ops and thousands of attachments, fit.
const REPLAY_ROOM: usize = QUEUE_MSGS / 2;
/// How often the queue is looked at while it has no room.
const ROOM_EVERY: Duration = Duration::from_millis(1);

impl Sessions {
    fn change_links(&self, change: impl Fn(&mut HashMap<holdfast_core::id::LinkId, LinkTx>)) {
        self.links.rcu(|links| {
            let mut links = HashMap::clone(links);
            change(&mut links);
            links
        });
    }

    /// Sessions with held ops first: somebody waits for those.
    async fn replay(&self, link: &LinkTx) {
        let mut entries = self.index.bound(link.boot());
        entries.sort_by_cached_key(|e| Reverse(e.held_ops.load(Ordering::Relaxed) > 0));
        for (n, entry) in entries.iter().enumerate() {
            while link.room() < REPLAY_ROOM.min(link.places() / 2) {
                tokio::time::sleep(ROOM_EVERY).await;
            }
            self.drive(entry, |s, now, out| {
                if self.is_up(link.id()) {
                    s.handle_link_up(now, link.boot(), link.id(), out);
                }
            });
            if n % SESSIONS_PER_TURN == SESSIONS_PER_TURN - 1 {
                tokio::task::yield_now().await;
            }
        }
    }

    async fn unlink(&self, link: &LinkTx) {
        // First of all, so that no session takes it up again.
        self.change_links(|links| drop(links.remove(&link.id())));
        for (n, entry) in self.index.bound(link.boot()).iter().enumerate() {
            self.drive(entry, |s, now, out| s.handle_link_down(now, link.id(), out));
            if n % SESSIONS_PER_TURN == SESSIONS_PER_TURN - 1 {
                tokio::task::yield_now().await;
            }
        }
    }

    fn owner_msg(&self, link: &LinkTx, entry: &Arc<Entry>, msg: M) {
        let did =
            self.drive_at(entry, Some(link.read_at()), |s, now, out| s.handle_owner_msg(now, link.id(), msg, out));
        // Named each time their number has doubled: a zombie may say a lot.
        if did.is_some_and(|d| d.stale) && link.stale().is_power_of_two() {
            let (node, boot) = (link.node(), link.boot());
            tracing::warn!(%node, %boot, session = %entry.id, "a frame of an old epoch was dropped: a zombie speaks");
        }
    }

    /// To the sessions named, or to all that are bound to this life of the node.
    fn spread(&self, link: &LinkTx, names: &[String], msg: &M) {
        let named = names.iter().filter_map(|n| self.get(&SessionId::parse(n).ok()?));
        let entries = if names.is_empty() { self.index.bound(link.boot()) } else { named.collect() };
        entries.iter().for_each(|entry| self.owner_msg(link, entry, msg.clone()));
    }
}

impl LinkEvents for Sessions {
    fn up<'a>(&'a self, link: &'a LinkTx) -> BoxFuture<'a, ()> {
        self.change_links(|links| drop(links.insert(link.id(), link.clone())));
        Box::pin(self.replay(link))
    }

    fn down<'a>(&'a self, link: &'a LinkTx) -> BoxFuture<'a, ()> {
        Box::pin(self.unlink(link))
    }

    fn message(&self, link: &LinkTx, msg: M) {
        match &msg {
            M::Health(h) => self.spread(link, &h.sessions, &msg),
            M::Draining(d) => self.spread(link, &d.sessions, &msg),
            _ => {
                // A session that nobody here follows any more is no mistake: it was left a moment ago.
                let entry = session_of(&msg).and_then(|name| self.get(&SessionId::parse(name).ok()?));
                if let Some(entry) = entry {
                    self.owner_msg(link, &entry, msg);
                }
            }
        }
    }

    fn refused(&self, node: &Arc<str>, boot: Boot) {
        // Full: reports wait already, and this one will come again.
        drop(self.suspects.try_send((node.clone(), boot)));
    }

    fn bound(&self, boot: Boot) -> usize {
        self.index.count(boot)
    }
}

fn session_of(msg: &M) -> Option<&str> {
    Some(match msg {
        M::Event(m) => &m.session,
        M::Committed(m) => &m.session,
        M::Nack(m) => &m.session,
        M::Reaction(m) => &m.session,
        M::Joined(m) => &m.session,
        M::Attached(m) => &m.session,
        M::State(m) => &m.session,
        M::NotOwner(m) => &m.session,
        M::ArmDeadline(m) => &m.session,
        M::Closed(m) => &m.session,
        M::Kick(m) => &m.session,
        M::Hello(_) | M::Draining(_) | M::Ping(_) | M::Pong(_) | M::Credit(_) | M::Health(_) => return None,
    })
}
