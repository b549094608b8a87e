//! The admission point: what the request carries goes to the core, its verdict comes back as an answer (design 9.3).

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use holdfast_core::{
    admission::{Admission, AdmissionConfig, Ask, Class, Shares, TicketError, Verdict},
    time::Now,
};

use super::{Gate, Refusal, Settings};
use crate::metrics::{Point, Transport};

/// Longest ticket or resume token of a query, in base64url. A longer one is none.
const SEALED_TEXT_MAX: usize = 256;

impl Gate {
    /// Upgrade: whether the client behind this request gets in, by the ticket (`k`) and the resume token (`r`) of its query,
    /// and how long it is to be kept waiting before it is served.
    ///
    /// # Errors
    /// What it is told instead.
    pub fn upgrade(&self, now: Now, query: &str, transport: Transport) -> Result<(Class, Duration), Refusal> {
        let (ticket, resume) = (sealed(query, "k="), sealed(query, "r="));
        let keys = self.keys.load();
        let ask = Ask { ticket: ticket.as_deref(), resume: resume.as_deref(), keys: &keys };
        let random = rand::random();
        let answer = self.admission().ask(now, &ask, random);
        let count = |point| self.counts.count(point, transport, Some(answer.class));
        if let Some(why) = answer.ticket {
            count(ticket_point(why));
        }
        match answer.verdict {
            Verdict::Admit { class, slot_lag, hold } => {
                count(if slot_lag.is_some() { Point::InSlot } else { Point::Admitted });
                slot_lag.into_iter().for_each(|lag| self.counts.slot_lag(lag));
                Ok((class, hold))
            }
            Verdict::Slot { wait, ticket: slot, .. } => {
                count(Point::Slot);
                Err(Refusal::slot(wait, &slot))
            }
            Verdict::Full { wait } => {
                count(Point::Full);
                Err(Refusal::full(wait))
            }
        }
    }
}

/// What the core is told.
pub(super) fn config(s: &Settings) -> AdmissionConfig {
    let part = |percent: u32| f64::from(percent) / 100.0;
    let [ticket, resuming, known, anonymous] = s.shares.map(part);
    AdmissionConfig {
        rate_per_s: s.admit_per_s,
        burst: s.admit_burst,
        shares: Shares { ticket, resuming, known, anonymous },
        horizon: s.horizon,
        early: s.ticket_early,
        late: s.ticket_late,
        guard: part(s.guard_percent),
        plain_spread: s.plain_spread,
    }
}

fn ticket_point(why: TicketError) -> Point {
    match why {
        TicketError::Malformed => Point::TicketMalformed,
        TicketError::UnknownKey => Point::TicketUnknownKey,
        TicketError::Forged => Point::TicketForged,
        TicketError::Early => Point::TicketEarly,
        TicketError::Expired => Point::TicketExpired,
        TicketError::Replayed => Point::TicketReplayed,
        TicketError::OtherIdentity => Point::TicketOtherIdentity,
    }
}

/// A fresh admission.
pub(super) fn admission(s: &Settings) -> Admission {
    Admission::new(config(s))
}

/// The resume token in a query.
#[must_use]
pub fn resume_of(query: &str) -> Option<Vec<u8>> {
    sealed(query, "r=")
}

/// The value of a parameter of the query, decoded.
fn sealed(query: &str, name: &str) -> Option<Vec<u8>> {
    let text = query.split('&').find_map(|pair| pair.strip_prefix(name))?;
    if text.len() > SEALED_TEXT_MAX {
        return None;
    }
    URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_is_searched_for_what_is_sealed() {
        assert_eq!(sealed("k=AQID&r=BA", "k="), Some(vec![1, 2, 3]));
        assert_eq!(sealed("k=AQID&r=BA==", "r="), Some(vec![4]));
        assert_eq!(sealed("kk=AQID", "k="), None);
        assert_eq!(sealed("k=%20", "k="), None);
        assert_eq!(sealed(&format!("k={}", "A".repeat(300)), "k="), None);
    }
}
