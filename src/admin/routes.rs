//! What the admin server answers.

use std::{convert::Infallible, fmt::Write as _};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Method, Request, Response, StatusCode, body::Incoming, header};
use serde_json::{Map, Value, json};

use super::{dashboard, drain, limits, views};
use crate::{
    config::LimitError,
    gateway::run::{DrainAsk, GatewayHandle},
    owner::Counters,
};

/// Most held ops in one answer: 20,000 at 150 bytes are 3 MB.
const HELD_MAX: usize = 20_000;

/// What a process says of itself.
pub trait Source: Send + Sync {
    /// Why it should get no traffic; empty = ready.
    fn not_ready(&self) -> Vec<String>;
    /// Facts for `/readyz` and `/status`, an object.
    fn facts(&self) -> Value;
    /// The text exposition of its instruments.
    fn metrics(&self) -> String {
        String::new()
    }
    /// Its held ops, the oldest first and up to `limit`, as an array.
    fn held(&self, _limit: usize) -> Value {
        json!([])
    }
    /// What happened lately, as an array; `None` = it keeps no such list, and has no dashboard.
    fn events(&self) -> Option<Value> {
        None
    }
    /// Its connections, as an array.
    fn connections(&self) -> Value {
        json!([])
    }
    /// More for `/status`, an object.
    fn status(&self) -> Value {
        json!({})
    }
    /// Its limits, after the changes in the body of a request, if any; `None` = it has none.
    fn limits(&self, _changes: Option<&Map<String, Value>>) -> Option<Result<Value, LimitError>> {
        None
    }
    /// Starts a drain if it is asked for one, and says how far it is; `None` = it has none.
    fn drain(&self, _ask: Option<DrainAsk>) -> Option<Value> {
        None
    }
}

/// A process that has little more to say than whether it is ready: owners and placement.
#[derive(Debug)]
pub struct Member {
    /// `owner`, `placement` or `gateway`.
    pub role: &'static str,
    /// Its name.
    pub node: String,
    /// Why it is not ready; empty = ready.
    pub reasons: std::sync::Mutex<Vec<String>>,
    /// What an owner counts.
    pub counters: Option<std::sync::Arc<Counters>>,
}

impl Member {
    /// Replaces the reasons.
    pub fn set(&self, reasons: Vec<String>) {
        *self.reasons.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = reasons;
    }
}

impl Source for Member {
    fn not_ready(&self) -> Vec<String> {
        self.reasons.lock().map_or_else(|e| e.into_inner().clone(), |r| r.clone())
    }
    fn facts(&self) -> Value {
        json!({"role": self.role, "node": self.node, "version": env!("CARGO_PKG_VERSION")})
    }
    fn metrics(&self) -> String {
        self.counters.as_deref().map_or_else(|| "# EOF\n".into(), owner_metrics)
    }
}

/// An owner's counters in the text form of OpenMetrics.
fn owner_metrics(c: &Counters) -> String {
    let all = [
        ("loads", "Reads of records", &c.loads),
        ("writes", "Conditional writes issued", &c.writes),
        ("events_written", "Events in those writes", &c.events_written),
        ("conflicts", "Writes whose condition failed: another owner's epoch was there", &c.conflicts),
        ("writes_fenced", "Of these, writes of sessions that had another owner: a zombie's", &c.writes_fenced),
        ("writes_answered", "Writes the store answered, or that were given up", &c.answered),
        ("unknown", "Writes of unknown outcome, read again before the next", &c.unknown),
        ("early_joins", "Joins that came before the directory's word, and waited for it", &c.early_joins),
        ("sent", "Messages to gateways", &c.sent),
        ("reactions_sent", "Reactions to gateways", &c.reactions_sent),
        ("reactions_refused", "Reactions not relayed: late, of another epoch, or past the lease", &c.reactions_refused),
        ("deposed", "Sessions lost to a higher epoch", &c.deposed),
        ("unknown_msgs", "Messages of a kind this version does not know", &c.unknown_msgs),
    ];
    let mut text = String::new();
    for (name, help, count) in all {
        let name = format!("holdfast_owner_{name}");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP {name} {help}.\n# TYPE {name} counter\n{name}_total {}", count.get());
    }
    text + "# EOF\n"
}

impl Source for GatewayHandle {
    fn not_ready(&self) -> Vec<String> {
        Self::not_ready(self)
    }
    fn facts(&self) -> Value {
        views::facts(self)
    }
    fn metrics(&self) -> String {
        Self::metrics(self).encode()
    }
    fn held(&self, limit: usize) -> Value {
        views::held(self, limit)
    }
    fn connections(&self) -> Value {
        views::connections(self)
    }
    fn events(&self) -> Option<Value> {
        Some(views::events(self))
    }
    fn status(&self) -> Value {
        views::status(self)
    }
    fn drain(&self, ask: Option<DrainAsk>) -> Option<Value> {
        if let Some(ask) = ask {
            tracing::info!(?ask, "an operator asks for a drain");
            Self::drain(self, ask);
        }
        Some(drain::view(&self.drain_status()))
    }
    fn limits(&self, changes: Option<&Map<String, Value>>) -> Option<Result<Value, LimitError>> {
        Some(changes.map_or_else(|| Ok(limits::view(self)), |changes| limits::change(self, changes)))
    }
}

/// One request's answer; the body is read where one means something.
pub(super) async fn serve(
    request: Request<Incoming>,
    source: &dyn Source,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path() != "/limits" {
        return answer(&request, source);
    }
    if !ours(&request) {
        return Ok(not_mine());
    }
    if foreign(&request) {
        return Ok(problem(StatusCode::FORBIDDEN, "a page of another origin may not ask for this"));
    }
    let body = match *request.method() {
        Method::PUT => match Limited::new(request.into_body(), limits::BODY_BYTES_MAX).collect().await {
            Ok(body) => Some(body.to_bytes()),
            Err(_) => return Ok(problem(StatusCode::PAYLOAD_TOO_LARGE, "at most 16 KiB")),
        },
        Method::GET | Method::HEAD => None,
        _ => return Ok(problem(StatusCode::METHOD_NOT_ALLOWED, "GET shows the limits, PUT changes some")),
    };
    Ok(limits_answer(body.as_deref(), source))
}

fn limits_answer(body: Option<&[u8]>, source: &dyn Source) -> Response<Full<Bytes>> {
    let changes = match body.map(limits::parse).transpose() {
        Ok(changes) => changes,
        Err(why) => return problem(StatusCode::BAD_REQUEST, &why),
    };
    match source.limits(changes.as_ref()) {
        Some(Ok(view)) => json_answer(StatusCode::OK, &view),
        Some(Err(e)) => text(StatusCode::BAD_REQUEST, "application/problem+json", format!("{}\n", limits::problem(&e))),
        None => problem(StatusCode::NOT_FOUND, "only a gateway has limits"),
    }
}

/// One request's answer. Generic over the body, which is never read.
pub(super) fn answer<B>(request: &Request<B>, source: &dyn Source) -> Result<Response<Full<Bytes>>, Infallible> {
    if !ours(request) {
        return Ok(not_mine());
    }
    if request.uri().path() == "/drain" {
        return Ok(drain_answer(request, source));
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return Ok(text(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET\n".into()));
    }
    Ok(match request.uri().path() {
        "/livez" => text(StatusCode::OK, "text/plain", "ok\n".into()),
        "/readyz" => {
            let reasons = source.not_ready();
            let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            json_answer(status, &merged(json!({"ready": reasons.is_empty(), "reasons": reasons}), source.facts()))
        }
        "/status" => {
            let reasons = source.not_ready();
            let head = merged(json!({"ready": reasons.is_empty(), "reasons": reasons}), source.facts());
            json_answer(StatusCode::OK, &merged(head, source.status()))
        }
        "/held" => match limit(request.uri().query().unwrap_or_default()) {
            Ok(limit) => json_answer(StatusCode::OK, &source.held(limit)),
            Err(detail) => problem(StatusCode::BAD_REQUEST, &detail),
        },
        "/events" => match source.events() {
            Some(events) => json_answer(StatusCode::OK, &events),
            None => problem(StatusCode::NOT_FOUND, "only a gateway keeps a list of what happened"),
        },
        "/connections" => json_answer(StatusCode::OK, &source.connections()),
        "/metrics" => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            text(StatusCode::OK, kind, source.metrics())
        }
        path => match dashboard::file(path).filter(|_| source.events().is_some()) {
            Some((kind, content)) => text(StatusCode::OK, kind, content.into()),
            None => text(
                StatusCode::NOT_FOUND,
                "text/plain",
                "/ (dashboard) /livez /readyz /metrics /status /events /held /connections /limits /drain\n".into(),
            ),
        },
    })
}

fn drain_answer<B>(request: &Request<B>, source: &dyn Source) -> Response<Full<Bytes>> {
    let ask = match *request.method() {
        Method::GET | Method::HEAD => None,
        Method::POST if foreign(request) => {
            return problem(StatusCode::FORBIDDEN, "a page of another origin may not ask for this");
        }
        Method::POST => match drain::ask(request.uri().query().unwrap_or_default()) {
            Ok(ask) => Some(ask),
            Err(detail) => return problem(StatusCode::BAD_REQUEST, &detail),
        },
        _ => return problem(StatusCode::METHOD_NOT_ALLOWED, "GET says how far it is, POST starts it"),
    };
    match source.drain(ask) {
        Some(status) => json_answer(StatusCode::OK, &status),
        None => problem(StatusCode::NOT_FOUND, "only a gateway drains by its admin server; an owner by placement"),
    }
}

/// Whether the host asked for is an address or `localhost`; probes and scrapes may use any name. A page elsewhere can point a name of its own at loopback
/// (DNS rebinding), and would then count as a page of this server.
fn ours<B>(request: &Request<B>) -> bool {
    if matches!(request.uri().path(), "/livez" | "/readyz" | "/metrics") {
        return true;
    }
    let Some(host) = request.headers().get(header::HOST) else { return true };
    let host = host.to_str().unwrap_or("?");
    host.parse::<std::net::SocketAddr>().is_ok()
        || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok()
        || host.split(':').next() == Some("localhost")
}

/// `limit` of a query; without one, [`HELD_MAX`].
fn limit(query: &str) -> Result<usize, String> {
    let Some(text) = query.split('&').find_map(|p| p.strip_prefix("limit=")) else { return Ok(HELD_MAX) };
    let wrong = || format!("limit: a number from 1 to {HELD_MAX} is wanted, not \"{text}\"");
    text.parse().ok().filter(|n| (1..=HELD_MAX).contains(n)).ok_or_else(wrong)
}

/// A browser's request from a page that is not ours: it names an origin that is not the host it was sent to.
fn foreign<B>(request: &Request<B>) -> bool {
    let header = |name| request.headers().get(name).and_then(|v| v.to_str().ok());
    header("origin").is_some_and(|o| o.split_once("://").map(|(_, host)| host) != header("host"))
}

/// The answer to a request for a name that somebody else may have pointed here (DNS rebinding).
fn not_mine() -> Response<Full<Bytes>> {
    let detail = "this host name is not mine: use the address the admin server listens on, or localhost";
    problem(StatusCode::MISDIRECTED_REQUEST, detail)
}

/// An error as RFC 9457 wants it.
fn problem(status: StatusCode, detail: &str) -> Response<Full<Bytes>> {
    let title = status.canonical_reason().unwrap_or_default();
    let body = json!({"type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail});
    text(status, "application/problem+json", format!("{body}\n"))
}

fn merged(mut a: Value, b: Value) -> Value {
    if let (Value::Object(a), Value::Object(b)) = (&mut a, b) {
        a.extend(b);
    }
    a
}

fn json_answer(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    text(status, "application/json", format!("{body}\n"))
}

fn text(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    async fn get(path: &str, source: &dyn Source) -> (u16, Value) {
        let response = answer(&Request::get(path).body(()).unwrap(), source).unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    #[tokio::test]
    async fn readiness_says_why_not() {
        let source = Member {
            role: "owner",
            node: "o-1".into(),
            reasons: vec!["directory: unreachable".to_owned()].into(),
            counters: Some(std::sync::Arc::default()),
        };
        let (status, body) = get("/readyz", &source).await;
        assert_eq!((status, &body["reasons"][0]), (503, &json!("directory: unreachable")));
        source.reasons.lock().unwrap().clear();
        assert_eq!(get("/readyz", &source).await.0, 200);
        assert_eq!(get("/status", &source).await.1["node"], "o-1");
        assert_eq!(get("/livez", &source).await.0, 200);
        source.counters.as_ref().unwrap().writes_fenced.add(2);
        let metrics = source.metrics();
        for line in ["holdfast_owner_conflicts_total 0", "holdfast_owner_writes_fenced_total 2"] {
            assert!(metrics.contains(&format!("\n{line}\n")), "{line} not in\n{metrics}");
        }
        assert_eq!(get("/nothing", &source).await.0, 404);
    }

    /// Drains when it is asked to.
    #[derive(Default)]
    struct Draining(std::sync::Mutex<Vec<DrainAsk>>);

    impl Source for Draining {
        fn not_ready(&self) -> Vec<String> {
            Vec::new()
        }
        fn facts(&self) -> Value {
            json!({})
        }
        fn drain(&self, ask: Option<DrainAsk>) -> Option<Value> {
            self.0.lock().unwrap().extend(ask);
            Some(drain::view(&crate::gateway::run::DrainStatus { state: "telling", told: 7, ..Default::default() }))
        }
    }

    #[tokio::test]
    async fn a_drain_is_asked_for_by_post_and_mistakes_are_problems() {
        let source = Draining::default();
        let ask = async |request: Request<()>, source: &dyn Source| {
            let response = answer(&request, source).unwrap();
            let kind = response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            (status, kind, serde_json::from_slice::<Value>(&body).unwrap())
        };
        let get = ask(Request::get("/drain").body(()).unwrap(), &source).await;
        assert_eq!((get.0, &get.2["state"], &get.2["told"]), (200, &json!("telling"), &json!(7)));
        let post = |uri: &str| Request::post(uri.to_owned());
        assert_eq!(ask(post("/drain?rate=50&deadline=9").body(()).unwrap(), &source).await.0, 200);
        let asked = DrainAsk { rate_per_s: Some(50), deadline: Some(std::time::Duration::from_secs(9)) };
        assert_eq!(*source.0.lock().unwrap(), [asked]);
        let bad = ask(post("/drain?rate=fast").body(()).unwrap(), &source).await;
        assert_eq!((bad.0, bad.1.as_str()), (400, "application/problem+json"));
        assert!(bad.2["detail"].as_str().unwrap().contains("fast"));
        let page = post("/drain").header("host", "127.0.0.1:9090").header("origin", "https://evil.example");
        assert_eq!(ask(page.body(()).unwrap(), &source).await.0, 403);
        let own = post("/drain").header("host", "127.0.0.1:9090").header("origin", "http://127.0.0.1:9090");
        assert_eq!(ask(own.body(()).unwrap(), &source).await.0, 200);
        assert_eq!(ask(Request::delete("/drain").body(()).unwrap(), &source).await.0, 405);
        let owner = Member { role: "owner", node: "o-1".into(), reasons: Vec::new().into(), counters: None };
        assert_eq!(ask(post("/drain").body(()).unwrap(), &owner).await.0, 404);
        assert_eq!(source.0.lock().unwrap().len(), 2);
    }
}
