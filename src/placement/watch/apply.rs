//! From the feed into the cache, and what changed by it to the sink.

use std::sync::Arc;

use holdfast_core::{
    directory::{self, Merge, State, Swept},
    id::SessionId,
    proto::{GatewayInfo, NodeInfo, Placement},
};
use prost::Message as _;

use super::{
    super::{
        feed::Feed,
        keys::DirKey,
        kv::{Item, KvEvent},
    },
    Change, Inner, lock,
};

/// One step of the feed.
pub(super) fn handle(inner: &Arc<Inner>, feed: Feed) {
    match feed {
        Feed::ListStarted => inner.write().handle_list_started(),
        Feed::Listed(item) | Feed::Event(KvEvent::Put(item)) => handle_put(inner, item),
        Feed::Event(KvEvent::Delete { key, mod_rev }) => handle_delete(inner, &key, mod_rev),
        Feed::ListDone => {
            let swept = inner.write().handle_list_done(inner.now());
            tell_swept(inner, swept);
            tell_state(inner);
        }
        Feed::Resumed => {
            inner.write().handle_resumed(inner.now());
            tell_state(inner);
        }
        Feed::Progress => inner.write().handle_progress(inner.now()),
        Feed::Trouble(e) => {
            if inner.write().handle_trouble() {
                tracing::warn!(error = %e, "the directory is stale");
            }
            tell_state(inner);
        }
    }
}

fn handle_put(inner: &Arc<Inner>, item: Item) {
    match DirKey::parse(&item.key) {
        Some(DirKey::Unit(unit)) => {
            if let Ok(placement) = Placement::decode(item.value)
                && inner.merge(unit.session(), directory::route(&placement, item.mod_rev)) == Merge::Alarm
            {
                tracing::error!(session = %unit.session(), "the directory names two owners for one epoch");
                resolve_later(inner, unit.session());
            }
        }
        Some(DirKey::Node(name)) => {
            if let Ok(info) = NodeInfo::decode(item.value)
                && inner.write().merge_node(&name, info.clone(), item.mod_rev)
            {
                (inner.sink)(Change::Node(name.into(), info));
            }
        }
        Some(DirKey::Gateway(name)) => {
            if let Ok(info) = GatewayInfo::decode(item.value) {
                let name: Arc<str> = name.into();
                lock(&inner.gateways).insert(name.clone(), info.clone());
                (inner.sink)(Change::Gateway(name, Some(info)));
            }
        }
        None => {}
    }
}

fn handle_delete(inner: &Arc<Inner>, key: &[u8], mod_rev: i64) {
    match DirKey::parse(key) {
        Some(DirKey::Unit(unit)) => {
            let unclear = inner.write().handle_deleted(&unit, mod_rev);
            if unclear {
                resolve_later(inner, unit.session());
            }
        }
        Some(DirKey::Node(name)) => {
            let gone = inner.write().handle_node_gone(&name, mod_rev);
            if let Some(boot) = gone {
                (inner.sink)(Change::NodeGone(name.into(), boot));
            }
        }
        Some(DirKey::Gateway(name)) => {
            lock(&inner.gateways).remove(name.as_str());
            (inner.sink)(Change::Gateway(name.into(), None));
        }
        None => {}
    }
}

/// A linearizable read decides; it ends within the timeout of one read.
fn resolve_later(inner: &Arc<Inner>, session: &SessionId) {
    let (inner, session) = (inner.clone(), session.clone());
    tokio::spawn(async move {
        if let Err(e) = inner.read_placement(&session).await {
            tracing::warn!(%session, error = %e, "the placement could not be read");
        }
    });
}

pub(super) fn tell_swept(inner: &Inner, swept: Swept) {
    if let Some(g) = swept.guarded {
        tracing::error!(
            gone = g.gone,
            known = g.known,
            "most of the directory is missing: an operator has to accept it"
        );
    }
    for unit in swept.units {
        (inner.sink)(Change::Gone(unit.session().clone()));
    }
    for (name, boot) in swept.nodes {
        (inner.sink)(Change::NodeGone(name, boot));
    }
}

fn tell_state(inner: &Inner) {
    let state = inner.read().state();
    let changed = inner.state.send_if_modified(|s| std::mem::replace(s, state) != state);
    match state {
        State::Synced if changed => (inner.sink)(Change::Synced),
        State::Stale if changed => (inner.sink)(Change::Stale),
        _ => {}
    }
}
