//! `GET /limits` and `PUT /limits`: every limit of the admission, read and changed while the gateway runs (design 9.4, 11).

use serde_json::{Map, Value, json};

use crate::{
    config::{LimitError, LiveLimits},
    gateway::run::GatewayHandle,
};

/// Longest body of a PUT: all limits by name are 1.5 KiB.
pub(super) const BODY_BYTES_MAX: usize = 16 * 1024;

/// All limits as they are now.
pub(super) fn view(handle: &GatewayHandle) -> Value {
    LiveLimits::from(&*handle.settings()).view()
}

/// Changes some limits, all of them or none, and shows what holds then.
pub(super) fn change(handle: &GatewayHandle, changes: &Map<String, Value>) -> Result<Value, LimitError> {
    let new = LiveLimits::from(&*handle.settings()).with(changes)?;
    handle.set(new.settings()?);
    let told = Value::Object(changes.clone());
    tracing::info!(changes = %told, "an operator changed limits");
    Ok(new.view())
}

/// The changes in a body: an object of limits by name.
pub(super) fn parse(body: &[u8]) -> Result<Map<String, Value>, String> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(changes)) => Ok(changes),
        Ok(_) => Err("an object of limits by name is wanted, as {\"admit_per_s\": 4000}".into()),
        Err(e) => Err(format!("the body is not JSON: {e}")),
    }
}

/// A refused limit as RFC 9457 wants it, with what it is about.
pub(super) fn problem(e: &LimitError) -> Value {
    json!({"type": "about:blank", "title": "Bad Request", "status": 400, "detail": e.to_string(),
        "field": e.field, "limit": e.limit, "value": e.value})
}
