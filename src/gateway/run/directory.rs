//! The directory's follower, as the sessions and the pool see it.

use std::sync::{Arc, OnceLock, Weak};

use futures_util::future::BoxFuture;
use holdfast_core::{
    id::{Boot, SessionId},
    session::Route,
};

use super::told;
use crate::{
    clock::Clock,
    gateway::sessions::{Directory, Sessions},
    metrics::Metrics,
    placement::watch::{Change, Sink, Watcher},
    upstream::Nodes,
};

/// The adapter.
pub(super) struct Follower(pub Watcher);

impl Directory for Follower {
    fn lookup(&self, session: &SessionId) -> Option<Route> {
        self.0.lookup(session)
    }

    fn resolve<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<Option<Route>, String>> {
        Box::pin(async move { self.0.resolve(session).await.map_err(|e| e.to_string()) })
    }
}

impl Nodes for Follower {
    fn node(&self, name: &str) -> Option<(Boot, Arc<str>)> {
        self.0.node(name).map(|info| (Boot(info.boot), info.addr.into()))
    }
}

/// News go to the sessions once there are any; before, there is nobody to tell.
pub(super) fn sink(sessions: Arc<OnceLock<Weak<Sessions>>>, metrics: Arc<Metrics>, clock: Clock) -> Sink {
    Arc::new(move |change| {
        if let Some((level, text)) = told::node(&change) {
            metrics.happenings().push(clock.now().wall, level, text);
        }
        let Some(sessions) = sessions.get().and_then(Weak::upgrade) else { return };
        match change {
            Change::Route(session, route) => sessions.route(&session, &route),
            Change::Node(node, _) | Change::NodeGone(node, _) => sessions.node_changed(&node),
            // A session that is gone from a list is not thereby ended: whoever needs it reads again.
            Change::Gone(_) | Change::Gateway(..) => {}
            Change::Synced => tracing::info!("the directory is current"),
            Change::Stale => tracing::warn!("the directory is stale: sessions go on from the cache"),
        }
    })
}
