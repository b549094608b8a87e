//! A gateway's answers as JSON.

use serde_json::{Value, json};

use crate::gateway::run::{Forecast, GatewayHandle, GatewayView, HeldOp, OwnerView, SessionSummary};

/// Sessions named in `/status`.
const SESSIONS_MAX: usize = 100;
/// Connections in one answer: 20,000 at 200 bytes are 4 MB.
const CONNECTIONS_MAX: usize = 20_000;

/// For `/readyz` and `/status`.
pub(super) fn facts(gateway: &GatewayHandle) -> Value {
    let directory = gateway.directory();
    json!({
        "role": "gateway",
        "node": gateway.node(),
        "version": env!("CARGO_PKG_VERSION"),
        "draining": gateway.draining(),
        "directory": directory.state,
        "directory_age_ms": u64::try_from(directory.age.as_millis()).unwrap_or(u64::MAX),
    })
}

/// The rest of `/status`.
pub(super) fn status(gateway: &GatewayHandle) -> Value {
    let session = |s: SessionSummary| {
        let (boot, epoch) = s.binding.map_or((Value::Null, 0), |(b, e)| (json!(b.to_string()), e));
        json!({"session": s.session.as_str(), "owner_boot": boot, "epoch": epoch, "held": s.held})
    };
    let owner = |o: OwnerView| {
        json!({"node": &*o.node, "boot": o.boot.to_string(), "link": o.link, "since_us": o.since.0,
            "sessions": o.sessions, "draining": o.draining})
    };
    let other = |g: GatewayView| json!({"node": &*g.node, "connections": g.connections, "admit_per_s": g.admit_per_s, "draining": g.draining});
    let Forecast { clients, others, admit_per_s, back_ms } = gateway.forecast();
    json!({
        "uptime_s": gateway.uptime().as_secs(),
        "owners": gateway.owners().into_iter().map(owner).collect::<Vec<_>>(),
        "gateways": gateway.gateways().into_iter().map(other).collect::<Vec<_>>(),
        "forecast": {"clients": clients, "others": others, "admit_per_s": admit_per_s, "back_ms": back_ms},
        "sessions": gateway.sessions(SESSIONS_MAX).into_iter().map(session).collect::<Vec<_>>(),
    })
}

/// For `/held`: up to `limit` ops, the oldest first.
pub(super) fn held(gateway: &GatewayHandle, limit: usize) -> Value {
    let one = |h: HeldOp| {
        json!({"session": h.session.as_str(), "principal": h.principal, "lane": h.lane, "seq": h.seq,
            "age_us": h.age_us, "sends": h.sends, "bytes": h.bytes})
    };
    gateway.held(limit).into_iter().map(one).collect()
}

/// For `/connections`.
pub(super) fn connections(gateway: &GatewayHandle) -> Value {
    let all = gateway.connections().into_iter().take(CONNECTIONS_MAX).map(|c| {
        json!({"conn": c.conn, "peer": c.peer.addr.to_string(), "peer_known": c.peer.known,
            "principal": c.principal.as_deref(), "sessions": c.sessions, "queued_bytes": c.queued_bytes})
    });
    all.collect()
}

/// For `/events`: the oldest first.
pub(super) fn events(gateway: &GatewayHandle) -> Value {
    let all = gateway.metrics().happenings().all();
    all.into_iter().map(|h| json!({"at_us": h.at.0, "level": h.level.label(), "text": h.text})).collect()
}
