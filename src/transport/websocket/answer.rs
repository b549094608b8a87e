//! Requests and their answers: health, pages, and the opening handshake (RFC 6455, 4.2).

use std::sync::{PoisonError, atomic::Ordering};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{self, HeaderMap, HeaderValue},
};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::{Admit, Agreed, Desk, Hooks, JSON, PATH, PROTO, Ready, Refused, Upgrade, Wish};
use crate::transport::Form;

/// `/livez` and `/readyz`, for balancers that cannot reach the admin server: the answer without the reasons.
pub(super) fn health(request: &Request<Incoming>, ready: Option<&Ready>) -> Option<Response<Full<Bytes>>> {
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

/// The answer to a request that is none for our health.
pub(super) fn answer(request: &Request<Incoming>, hooks: &Hooks<'_>, desk: &Desk) -> Response<Full<Bytes>> {
    if request.uri().path() != PATH {
        let page = hooks.pages.and_then(|p| p(request.uri().path())).filter(|_| request.method() == Method::GET);
        return match page {
            Some((kind, body)) => with(StatusCode::OK, body, kind),
            None => say(StatusCode::NOT_FOUND, &format!("nothing here; the WebSocket endpoint is {PATH}\n")),
        };
    }
    let (response, agreed) = match opening(request) {
        Err((status, why)) => (mistake(status, &why), None),
        Ok(accept) => decide(request, accept, hooks.admit),
    };
    if let Some(agreed) = agreed {
        desk.corked.store(matches!(agreed, Agreed::Refused(_)), Ordering::Relaxed);
        *desk.agreed.lock().unwrap_or_else(PoisonError::into_inner) = Some(agreed);
    }
    response
}

/// A well-formed opening handshake: is its client let in, and in which form is it told?
///
/// A browser shows its page nothing of a handshake that failed, so where there may be one (it names its origin, or offers
/// a subprotocol of ours) a refusal is a handshake that succeeds, and a close frame.
fn decide(
    request: &Request<Incoming>,
    accept: HeaderValue,
    admit: Admit<'_>,
) -> (Response<Full<Bytes>>, Option<Agreed>) {
    let headers = request.headers();
    let form = lists(headers, &header::SEC_WEBSOCKET_PROTOCOL).find_map(|name| match name {
        JSON => Some(Form::Json),
        PROTO => Some(Form::Proto),
        _ => None,
    });
    let origin = headers.get(header::ORIGIN).and_then(|v| v.to_str().ok());
    let query = request.uri().query().unwrap_or_default();
    let forwarded_for = forwarded_for(headers);
    let verdict = admit(&Wish { query, origin, forwarded_for: forwarded_for.as_deref() });
    match (verdict, form) {
        (Ok(()), Some(form)) => {
            let upgrade = Upgrade { form, origin: origin.map(str::to_owned), query: query.to_owned(), forwarded_for };
            (switching(accept, Some(form)), Some(Agreed::Client(upgrade)))
        }
        (Ok(()), None) => {
            let why = format!(
                "no subprotocol offered that is spoken here: offer {JSON} or {PROTO} (Sec-WebSocket-Protocol)\n"
            );
            (mistake(StatusCode::BAD_REQUEST, &why), None)
        }
        (Err(refused), form) if form.is_some() || origin.is_some() => {
            (switching(accept, form), Some(Agreed::Refused(refused.frame)))
        }
        (Err(refused), _) => (unavailable(refused), None),
    }
}

fn switching(accept: HeaderValue, form: Option<Form>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if let Some(form) = form {
        let name = if form == Form::Json { JSON } else { PROTO };
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(name));
    }
    response
}

fn unavailable(refused: Refused) -> Response<Full<Bytes>> {
    // Without a wait there is no use in coming back.
    let status = if refused.retry_after_s.is_some() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::FORBIDDEN };
    let mut response = with(status, Bytes::from(refused.body + "\n"), "application/json");
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    if let Some(seconds) = refused.retry_after_s {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

fn mistake(status: StatusCode, why: &str) -> Response<Full<Bytes>> {
    let mut response = say(status, why);
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    if status == StatusCode::UPGRADE_REQUIRED {
        response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        response.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    }
    response
}

/// `Sec-WebSocket-Accept` for a well-formed opening handshake (RFC 6455, 4.2.1), subprotocols aside.
fn opening(request: &Request<Incoming>) -> Result<HeaderValue, (StatusCode, String)> {
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
    match HeaderValue::from_str(&derive_accept_key(key.as_bytes())) {
        Ok(accept) => Ok(accept),
        Err(_) => bad("Sec-WebSocket-Key is not valid"),
    }
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
