//! Who a client is and what it may attach to: tokens verified locally, origins checked (design 4.7).

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use holdfast_core::time::Wall;
use jsonwebtoken::Validation;
use serde::Deserialize;

use super::jwks::Jwks;

/// The audience every token must name, unless the configuration says otherwise.
pub const AUDIENCE: &str = "holdfast";
/// Longest token, in bytes: real ones are below 2 KiB, and each is held only while it is checked.
pub const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// Longest `sub`, in bytes (it is a key of the record).
const SUB_BYTES_MAX: usize = 256;

/// How far the issuer's clock may be ahead of ours, for `nbf`.
const CLOCKS_APART: Duration = Duration::from_secs(5);

/// What a verified token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `sub`.
    pub principal: Arc<str>,
    /// `exp`.
    pub expires: Wall,
    /// Origins a browser may use it from; empty = any that the gateway allows.
    pub origins: Vec<String>,
    /// What it may attach to; `None` = what the owner says.
    sessions: Option<Vec<(String, Grant)>>,
}

/// A place in a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The highest role: participant unless the token says spectator.
    pub spectator_only: bool,
    /// Seat or member id; empty = none.
    pub seat: Arc<str>,
}

/// Why a token was refused. The text is for the developer of the client; it never quotes the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// No token at all.
    Missing,
    /// Not a JWT, or above [`TOKEN_BYTES_MAX`].
    Malformed(String),
    /// An algorithm or key this gateway does not have.
    NoKey(String),
    /// The signature does not fit.
    Signature,
    /// A claim is missing or wrong.
    Claim(String),
    /// Past `exp`: refresh it.
    Expired,
    /// Another `sub` than the connection's.
    OtherSub,
    /// Not looked at: too many from this address did not verify. Try again after this.
    Barred(Duration),
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("token is missing"),
            Self::Malformed(why) => write!(f, "token is not a JWT: {why}"),
            Self::NoKey(which) => write!(f, "no key here for a token with {which}"),
            Self::Signature => f.write_str("token signature does not verify"),
            Self::Claim(which) => write!(f, "token claim {which}"),
            Self::Expired => f.write_str("token expired: refresh it and reconnect"),
            Self::OtherSub => f.write_str("token has another sub than this connection"),
            Self::Barred(wait) => {
                let seconds = wait.as_millis().div_ceil(1000);
                write!(f, "too many tokens from this address did not verify; again in {seconds} s")
            }
        }
    }
}

impl std::error::Error for TokenError {}

#[derive(Deserialize)]
struct Claims {
    sub: Option<String>,
    exp: Option<serde_json::Number>,
    nbf: Option<serde_json::Number>,
    sessions: Option<HashMap<String, Place>>,
    #[serde(default)]
    origin: Vec<String>,
}

#[derive(Deserialize)]
struct Place {
    role: Option<String>,
    seat: Option<String>,
}

impl Identity {
    /// Verifies `token`: HS256, ES256, `EdDSA` or RS256 by a key of `keys`; `aud` = theirs, `exp`, `sub`.
    pub fn verify(token: &str, keys: &Jwks, now: Wall) -> Result<Self, TokenError> {
        if token.is_empty() {
            return Err(TokenError::Missing);
        }
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::Malformed(format!("{} bytes; {TOKEN_BYTES_MAX} are allowed", token.len())));
        }
        Self::from_claims(decode(token, keys)?, now)
    }

    fn from_claims(claims: Claims, now: Wall) -> Result<Self, TokenError> {
        let claim = |why: &str| TokenError::Claim(why.to_owned());
        let sub = claims.sub.filter(|s| !s.is_empty()).ok_or_else(|| claim("sub is missing"))?;
        if sub.len() > SUB_BYTES_MAX {
            return Err(TokenError::Claim(format!("sub: {} bytes; {SUB_BYTES_MAX} are allowed", sub.len())));
        }
        let exp = claims.exp.ok_or_else(|| claim("exp is missing"))?;
        let expires = moment(&exp);
        if expires <= now {
            return Err(TokenError::Expired);
        }
        if claims.nbf.is_some_and(|nbf| moment(&nbf) > now.after(CLOCKS_APART)) {
            return Err(claim("nbf is in the future"));
        }
        let sessions = claims.sessions.map(places).transpose()?;
        Ok(Self { principal: sub.into(), expires, origins: claims.origin, sessions })
    }

    /// The place this token gives in `session`; `None` = it may not attach. An exact name wins over globs, and among globs the longest.
    #[must_use]
    pub fn grant(&self, session: &str) -> Option<Grant> {
        let Some(sessions) = &self.sessions else { return Some(Grant::default()) };
        let rank = |pattern: &str| (pattern == session, pattern.len());
        sessions
            .iter()
            .filter(|(p, _)| p == session || glob(p.as_bytes(), session.as_bytes()))
            .max_by_key(|(p, _)| rank(p))
            .map(|(_, g)| g.clone())
    }

    /// Whether a browser at `origin` (`None` = not a browser) may use this token.
    #[must_use]
    pub fn allows_origin(&self, origin: Option<&str>) -> bool {
        allowed(&self.origins, origin)
    }
}

/// Whether `origin` is in `list`: an empty list and `*` allow any, no `Origin` header (not a browser) is always allowed.
#[must_use]
pub fn allowed(list: &[String], origin: Option<&str>) -> bool {
    let Some(origin) = origin else { return true };
    list.is_empty() || list.iter().any(|one| one == "*" || one.eq_ignore_ascii_case(origin))
}

fn decode(token: &str, keys: &Jwks) -> Result<Claims, TokenError> {
    let header = jsonwebtoken::decode_header(token).map_err(|e| TokenError::Malformed(e.to_string()))?;
    let (audience, keys) = (keys.audience(), keys.keys());
    let fits = |k: &&super::jwks::Key| {
        k.algorithm == header.alg && (header.kid.is_none() || k.id.is_none() || k.id == header.kid)
    };
    let mut outcome =
        TokenError::NoKey(format!("alg {:?}, kid {:?}", header.alg, header.kid.as_deref().unwrap_or("(none)")));
    for key in keys.iter().filter(fits) {
        let mut rules = Validation::new(key.algorithm);
        rules.set_audience(&[audience]);
        rules.set_required_spec_claims(&["aud"]);
        // `exp` is checked against the anchored clock, not the system's.
        rules.validate_exp = false;
        match jsonwebtoken::decode::<Claims>(token, &key.key, &rules) {
            Ok(data) => return Ok(data.claims),
            Err(e) => outcome = explain(&e, audience),
        }
        if outcome != TokenError::Signature {
            break;
        }
    }
    Err(outcome)
}

fn explain(e: &jsonwebtoken::errors::Error, audience: &str) -> TokenError {
    use jsonwebtoken::errors::ErrorKind as K;
    match e.kind() {
        K::InvalidSignature => TokenError::Signature,
        K::InvalidAudience => TokenError::Claim(format!("aud is not \"{audience}\"")),
        K::MissingRequiredClaim(name) => TokenError::Claim(format!("{name} is missing")),
        other => TokenError::Claim(format!("{other:?}")),
    }
}

fn places(sessions: HashMap<String, Place>) -> Result<Vec<(String, Grant)>, TokenError> {
    let one = |(pattern, place): (String, Place)| match place.role.as_deref() {
        None | Some("participant") => {
            Ok((pattern, Grant { spectator_only: false, seat: place.seat.unwrap_or_default().into() }))
        }
        Some("spectator") => Ok((pattern, Grant { spectator_only: true, seat: place.seat.unwrap_or_default().into() })),
        Some(_) => Err(TokenError::Claim(format!("sessions.{pattern}.role is neither participant nor spectator"))),
    };
    sessions.into_iter().map(one).collect()
}

/// Seconds since 1970, possibly with a fraction, which is dropped. Negative = 1970, too large = never.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, as wanted")]
fn moment(seconds: &serde_json::Number) -> Wall {
    let whole = seconds.as_u64().or_else(|| seconds.as_f64().map(|f| f as u64));
    Wall(whole.unwrap_or(0).saturating_mul(1_000_000))
}

/// `*` stands for any run of characters, `?` for one. Linear in text and pattern but for the last `*`.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    p = at + 1;
                    t = from + 1;
                    star = Some((at, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
#[path = "auth_tests.rs"]
mod tests;
