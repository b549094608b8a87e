//! Somebody who does nothing wrong, and must not notice what others do.

use serde_json::json;

use super::{
    client::{Client, Resting},
    cluster::{Cluster, shared},
    tokens,
};

/// A client in a session of its own.
pub struct Bystander {
    client: Resting,
    addr: String,
    session: String,
}

impl Bystander {
    /// The shared installation with a bystander at work.
    pub async fn new() -> (&'static Cluster, Self) {
        let cluster = shared().await;
        let session = fresh("bystander");
        cluster.create("meeting", &session);
        let mut client = Client::open(&cluster.gateways[0].addr, &tokens::token("bystander", "b")).await;
        client.attach(&session).await;
        (cluster, Self { addr: client.addr().to_owned(), client: client.rest(), session })
    }

    /// Its connection still lives, and its op still enters the record; so does that of somebody who comes only now.
    pub async fn finish(self) {
        let mut client = self.client.back().await;
        client.settle(&self.session, &json!({"hand": true})).await;
        let mut late = Client::open(&self.addr, &tokens::token("late", "l")).await;
        late.attach(&self.session).await;
        late.settle(&self.session, &json!({"hand": true})).await;
        client.expect("event", |e| e["by"] == "l").await;
    }
}

/// A session id nobody else uses.
pub fn fresh(prefix: &str) -> String {
    format!("{prefix}-{:016x}", rand::random::<u64>())
}
