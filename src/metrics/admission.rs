//! What the admission counts, stage by stage (design 9.4).

use std::time::Duration;

use holdfast_core::admission::Class;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};

/// Upper bounds of the attempts per admission.
const ATTEMPTS: [f64; 9] = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0, 50.0];
/// Upper bounds of the lag behind a slot, in seconds; a ticket is good for 5 s.
const LAGS: [f64; 12] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0];

macro_rules! points {
    ($($name:ident = $stage:literal $reason:literal $by_class:literal,)*) => {
        /// A stage of the admission and what became of a client there.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each is its two labels")]
        pub enum Point { $($name,)* }

        impl Point {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Labels `stage` and `reason`.
            #[must_use]
            pub fn labels(self) -> (&'static str, &'static str) {
                match self { $(Self::$name => ($stage, $reason),)* }
            }

            /// Whether the class is known there.
            fn by_class(self) -> bool {
                match self { $(Self::$name => $by_class,)* }
            }
        }
    };
}

points! {
    Connections = "accept" "connections" false,
    Descriptors = "accept" "descriptors" false,
    Prefix = "before_tls" "prefix" false,
    Handshakes = "before_tls" "handshakes" false,
    QueueTime = "before_tls" "queue_time" false,
    Silent = "tls" "timeout" false,
    Failed = "tls" "failed" false,
    Admitted = "upgrade" "admitted" true,
    Slot = "upgrade" "slot" true,
    Full = "upgrade" "full" true,
    Origin = "upgrade" "origin" false,
    InSlot = "upgrade" "in_slot" true,
    TicketMalformed = "upgrade" "ticket_malformed" true,
    TicketUnknownKey = "upgrade" "ticket_unknown_key" true,
    TicketForged = "upgrade" "ticket_forged" true,
    TicketEarly = "upgrade" "ticket_early" true,
    TicketExpired = "upgrade" "ticket_expired" true,
    TicketReplayed = "upgrade" "ticket_replayed" true,
    TicketOtherIdentity = "upgrade" "ticket_other_identity" true,
    TokenRefused = "auth" "token" false,
    TokenExpired = "auth" "expired" false,
    Barred = "auth" "prefix" false,
    AttachWaited = "attach" "waited" true,
    AttachRefused = "attach" "overloaded" true,
    OpRate = "op" "rate" true,
    ReactionRate = "op" "reaction_rate" true,
}

/// What a client came over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// WebSocket.
    Ws,
    /// WebSocket over TLS.
    Wss,
}

impl Transport {
    const ALL: [Self; 2] = [Self::Ws, Self::Wss];

    /// Label `transport`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Ws => "ws",
            Self::Wss => "wss",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    stage: &'static str,
    reason: &'static str,
    transport: &'static str,
    class: &'static str,
}

/// Instruments of the admission. Counting is one addition: the cells are found once, at the start.
#[derive(Debug)]
pub struct Admission {
    family: Family<Labels, Counter>,
    cells: Vec<Counter>,
    slot_lag: Histogram,
    attempts: Histogram,
    queue: Histogram,
}

impl Default for Admission {
    fn default() -> Self {
        let family = Family::<Labels, Counter>::default();
        let mut cells = Vec::new();
        for point in Point::ALL {
            let (stage, reason) = point.labels();
            for transport in Transport::ALL {
                let classes = std::iter::once("none").chain(Class::ALL.iter().map(|c| c.label()));
                cells.extend(classes.enumerate().map(|(n, class)| {
                    if point.by_class() != (n > 0) {
                        return Counter::default();
                    }
                    let labels = Labels { stage, reason, transport: transport.label(), class };
                    family.get_or_create_owned(&labels)
                }));
            }
        }
        Self {
            family,
            cells,
            slot_lag: Histogram::new(LAGS),
            attempts: Histogram::new(ATTEMPTS),
            queue: super::times(),
        }
    }
}

impl Admission {
    /// Adds them to a registry.
    pub(super) fn register(&self, r: &mut Registry) {
        let help = "Clients and what they asked for at each stage of the admission, by what became of them";
        r.register("admission", help, self.family.clone());
        let help = "How long after its slot a client with a ticket came and was admitted";
        r.register_with_unit("slot_lag", help, Unit::Seconds, self.slot_lag.clone());
        let help = "Attempts a client needed until it was admitted, as it says itself";
        r.register("attempts_per_admit", help, self.attempts.clone());
        let help = "How long handshakes waited for their turn to compute";
        r.register_with_unit("handshake_queue", help, Unit::Seconds, self.queue.clone());
    }

    /// One more. The class is ignored where the stage does not know it, and wanted where it does.
    pub fn count(&self, point: Point, transport: Transport, class: Option<Class>) {
        if let Some(cell) = self.cells.get(index(point, transport, class)) {
            cell.inc();
        }
    }

    /// How often that happened.
    #[must_use]
    pub fn get(&self, point: Point, transport: Transport, class: Option<Class>) -> u64 {
        self.cells.get(index(point, transport, class)).map_or(0, Counter::get)
    }

    /// A client with a ticket was admitted this long after its slot.
    pub fn slot_lag(&self, lag: Duration) {
        self.slot_lag.observe(lag.as_secs_f64());
    }

    /// A client that was admitted said hello: its `attempt`, where both 0 and 1 are the first.
    pub fn attempts(&self, attempt: u32) {
        self.attempts.observe(f64::from(attempt.max(1)));
    }

    /// A handshake waited this long for its turn.
    pub fn queued(&self, waited: Duration) {
        self.queue.observe(waited.as_secs_f64());
    }
}

fn index(point: Point, transport: Transport, class: Option<Class>) -> usize {
    let class = if point.by_class() { class.unwrap_or(Class::Anonymous) as usize + 1 } else { 0 };
    (point as usize * Transport::ALL.len() + transport as usize) * (Class::ALL.len() + 1) + class
}
