//! HTTP/1.1 upgrade at `/v1/ws` and the WebSocket that comes of it (design 4.1).

use std::{
    convert::Infallible,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{self, HeaderMap, HeaderValue},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        handshake::derive_accept_key,
        protocol::{Role, WebSocketConfig},
    },
};

use super::{
    Form,
    socket::{Framed, Stream},
};

/// The path of the WebSocket endpoint.
pub const PATH: &str = "/v1/ws";
/// Subprotocol of the JSON form.
pub const JSON: &str = "holdfast.v1.json";
/// Subprotocol of the binary form.
pub const PROTO: &str = "holdfast.v1.proto";
/// Read buffer per connection: 1 KiB keeps an idle connection at 2.7 KiB in all (measured, design 17).
const READ_BUFFER_BYTES: usize = 1024;

/// The socket of one client, frames in, frames out.
pub type Socket = WebSocketStream<Framed>;

/// What the upgrade request said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// Chosen from the subprotocols offered: the client's first that we know.
    pub form: Form,
    /// The `Origin` header, as browsers send it.
    pub origin: Option<String>,
    /// `k` and `r` of the query (slot ticket, resume token), percent-decoding not needed: base64url.
    pub query: String,
    /// Values of all `X-Forwarded-For` headers in their order, to be believed through trusted hops only.
    pub forwarded_for: Option<String>,
}

/// Static pages beside the endpoint: path to (content type, body).
pub type Pages = Arc<dyn Fn(&str) -> Option<(&'static str, Bytes)> + Send + Sync>;

/// Whether this gateway should get new clients, as `/readyz` answers balancers. Asked for each of their checks.
pub type Ready = Arc<dyn Fn() -> bool + Send + Sync>;

/// Serves HTTP on `stream` until a client upgrades; `None` = it left, or asked only for pages or its health.
///
/// The caller bounds the time. hyper's read buffer is dropped (it would pin 8 KiB); bytes behind the request are kept.
pub async fn upgrade(
    stream: Stream,
    pages: Option<Pages>,
    ready: Option<Ready>,
    message_bytes_max: usize,
) -> io::Result<Option<(Upgrade, Socket)>> {
    let agreed = Arc::new(Mutex::new(None));
    let checked = AtomicBool::new(false);
    let service = service_fn(|request: Request<Incoming>| {
        let health = health(&request, ready.as_ref());
        checked.store(health.is_some(), Ordering::Relaxed);
        let response = health.unwrap_or_else(|| answer(&request, pages.as_ref(), &agreed));
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let parts = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .without_shutdown()
        .await;
    let parts = match parts {
        Ok(parts) => parts,
        // Balancers reset their checks once they have heard enough.
        Err(_) if checked.load(Ordering::Relaxed) => return Ok(None),
        Err(e) => return Err(io::Error::other(e)),
    };
    let Some(agreed) = agreed.lock().unwrap_or_else(PoisonError::into_inner).take() else { return Ok(None) };
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(0)
        .max_message_size(Some(message_bytes_max))
        .max_frame_size(Some(message_bytes_max));
    let framed = Framed::new(parts.io.into_inner());
    let early = parts.read_buf.to_vec();
    drop(parts.read_buf);
    let socket = if early.is_empty() {
        WebSocketStream::from_raw_socket(framed, Role::Server, Some(config)).await
    } else {
        WebSocketStream::from_partially_read(framed, early, Role::Server, Some(config)).await
    };
    Ok(Some((agreed, socket)))
}

type Agreed = Mutex<Option<Upgrade>>;

/// `/livez` and `/readyz`, for balancers that cannot reach the admin server: the answer without the reasons.
fn health(request: &Request<Incoming>, ready: Option<&Ready>) -> Option<Response<Full<Bytes>>> {
    let good = match request.uri().path() {
        "/livez" => true,
        "/readyz" => ready.is_none_or(|ready| ready()),
        _ => return None,
    };
    let mut response = match *request.method() {
        Method::GET | Method::HEAD if good => say(StatusCode::OK, "ok\n"),
        Method::GET | Method::HEAD => say(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
        _ => say(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n"),
    };
    // The next check brings its own connection: idle ones would end in a timeout, which counts as a failure.
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    Some(response)
}

fn answer(request: &Request<Incoming>, pages: Option<&Pages>, agreed: &Agreed) -> Response<Full<Bytes>> {
    if request.uri().path() != PATH {
        let page = pages.and_then(|p| p(request.uri().path())).filter(|_| request.method() == Method::GET);
        return match page {
            Some((kind, body)) => with(StatusCode::OK, body, kind),
            None => say(StatusCode::NOT_FOUND, &format!("nothing here; the WebSocket endpoint is {PATH}\n")),
        };
    }
    match check(request) {
        Ok((upgrade, accept)) => {
            let mut response = Response::new(Full::default());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let name = if upgrade.form == Form::Json { JSON } else { PROTO };
            let headers = response.headers_mut();
            headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(name));
            *agreed.lock().unwrap_or_else(PoisonError::into_inner) = Some(upgrade);
            response
        }
        Err((status, why)) => {
            let mut response = say(status, &why);
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            if status == StatusCode::UPGRADE_REQUIRED {
                response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
                response.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
            }
            response
        }
    }
}

fn check(request: &Request<Incoming>) -> Result<(Upgrade, HeaderValue), (StatusCode, String)> {
    let headers = request.headers();
    let bad = |why: &str| Err((StatusCode::BAD_REQUEST, format!("{why}\n")));
    if request.method() != Method::GET {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "a WebSocket is opened with GET\n".into()));
    }
    if !lists(headers, &header::UPGRADE).any(|v| v.eq_ignore_ascii_case("websocket")) {
        return Err((
            StatusCode::UPGRADE_REQUIRED,
            format!("{PATH} speaks WebSocket: Upgrade: websocket is missing\n"),
        ));
    }
    if !lists(headers, &header::CONNECTION).any(|v| v.eq_ignore_ascii_case("upgrade")) {
        return bad("Connection: Upgrade is missing");
    }
    if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|v| v != "13") {
        return Err((StatusCode::UPGRADE_REQUIRED, "Sec-WebSocket-Version: 13 is spoken here\n".into()));
    }
    let Some(key) = headers.get(header::SEC_WEBSOCKET_KEY) else { return bad("Sec-WebSocket-Key is missing") };
    let Some(form) = lists(headers, &header::SEC_WEBSOCKET_PROTOCOL).find_map(|name| match name {
        JSON => Some(Form::Json),
        PROTO => Some(Form::Proto),
        _ => None,
    }) else {
        return bad(&format!(
            "no subprotocol offered that is spoken here: offer {JSON} or {PROTO} (Sec-WebSocket-Protocol)"
        ));
    };
    let Ok(accept) = HeaderValue::from_str(&derive_accept_key(key.as_bytes())) else {
        return bad("Sec-WebSocket-Key is not valid");
    };
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
    let query = request.uri().query().unwrap_or_default().to_owned();
    Ok((Upgrade { form, origin: text("origin"), query, forwarded_for: forwarded_for(headers) }, accept))
}

/// Some balancers append to the header, others add a line of their own below the client's.
fn forwarded_for(headers: &HeaderMap) -> Option<String> {
    let lines: Vec<&str> = headers.get_all("x-forwarded-for").iter().map(|v| v.to_str().unwrap_or("?")).collect();
    (!lines.is_empty()).then(|| lines.join(","))
}

/// The comma-separated values of all headers of that name.
fn lists<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(',')).map(str::trim)
}

fn say(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    with(status, Bytes::copy_from_slice(text.as_bytes()), "text/plain; charset=utf-8")
}

fn with(status: StatusCode, body: Bytes, kind: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
