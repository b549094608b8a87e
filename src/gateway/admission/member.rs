//! A connection that has said hello: its class, its rank, and the tokens with which it may come back (design 9.2, 9.3).

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use holdfast_core::{
    admission::{
        Admission, Class, ResumeToken, TICKET_BYTES,
        rank::{self, ClassCounts},
    },
    time::Now,
};

use super::Gate;

/// One connection among those of its class, until dropped.
#[derive(Debug)]
pub struct Member {
    gate: Arc<Gate>,
    class: Class,
    /// Its place within its class: drawn once, so that its rank moves only when the classes do.
    draw: u64,
}

/// What a resume token of the same principal says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// What it was attached to.
    pub class: Class,
    /// Smoothed round trip, in microseconds; 0 = not known.
    pub srtt_us: u32,
    /// Upper bound of the round trip, in microseconds; 0 = not known.
    pub rtt_bound_us: u32,
}

impl Member {
    /// One of a class.
    #[must_use]
    pub fn new(gate: &Arc<Gate>, class: Class) -> Self {
        gate.members[class as usize].fetch_add(1, Ordering::Relaxed);
        Self { gate: gate.clone(), class, draw: rand::random() }
    }

    /// Its class.
    #[must_use]
    pub fn class(&self) -> Class {
        self.class
    }

    /// Another class, as what it is attached to changed.
    pub fn set(&mut self, class: Class) {
        self.gate.members[self.class as usize].fetch_sub(1, Ordering::Relaxed);
        self.gate.members[class as usize].fetch_add(1, Ordering::Relaxed);
        self.class = class;
    }

    /// `reconnect.rank_ppm`: games first, then meetings, documents, the rest.
    #[must_use]
    pub fn rank_ppm(&self) -> u32 {
        let count = |class: Class| self.gate.members[class as usize].load(Ordering::Relaxed);
        let counts = ClassCounts {
            games: count(Class::Game),
            meetings: count(Class::Meeting),
            documents: count(Class::Document),
            others: count(Class::Known) + count(Class::Anonymous),
        };
        rank::rank_ppm(counts, self.class, self.draw)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.gate.members[self.class as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

impl Gate {
    /// `welcome.resume` for a principal of that class with that round trip.
    #[must_use]
    pub fn resume_token(&self, now: Now, principal: &str, state: Resumed) -> Vec<u8> {
        let keys = self.keys.load();
        let token = ResumeToken {
            client: keys.client_id(principal),
            class: state.class,
            gateway: self.label,
            srtt_us: state.srtt_us,
            rtt_bound_us: state.rtt_bound_us,
            issued: now.wall,
        };
        token.seal(&keys).to_vec()
    }

    /// What a resume token says, if it is good and this principal's.
    #[must_use]
    pub fn resumed(&self, now: Now, token: &[u8], principal: &str) -> Option<Resumed> {
        let keys = self.keys.load();
        let token = ResumeToken::open(&keys, now.wall, token).ok()?;
        (token.client == keys.client_id(principal)).then_some(Resumed {
            class: token.class,
            srtt_us: token.srtt_us,
            rtt_bound_us: token.rtt_bound_us,
        })
    }

    /// A ticket with which `principal` comes back, here or to another gateway, in `slot_in` from now: for those who are
    /// sent away. Good only beside the resume token it has.
    #[must_use]
    pub fn drain_ticket(&self, now: Now, slot_in: Duration, principal: &str) -> [u8; TICKET_BYTES] {
        let keys = self.keys.load();
        // Whoever was in and is asked to leave comes before whoever was never in.
        Admission::ticket(now, slot_in, (&keys.client_id(principal), Class::Game), &keys)
    }
}
