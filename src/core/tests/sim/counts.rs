//! What happened in a run: nothing was tested that did not happen.

macro_rules! closed_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }
        impl $name {
            /// All of them, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
        }
    };
}

closed_enum! {
    /// One kind of fault.
    Fault {
        /// An owner process dies and comes back later.
        OwnerCrash,
        /// It comes back at once, on the same node, with a new boot, inside its lease.
        OwnerBounce,
        /// It stops, past its lease or not, and goes on with stale beliefs.
        OwnerPause,
        /// Its lease is revoked while it lives.
        LeaseRevoked,
        /// It is drained.
        OwnerDrain,
        /// A gateway process dies.
        GatewayCrash,
        /// It stops and goes on.
        GatewayPause,
        /// A link breaks.
        LinkFlap,
        /// A link is slow for a while.
        LinkStall,
        /// Links of a gateway to all owners break and dials fail for a while.
        Partition,
        /// The directory is out of reach.
        DirectoryFrozen,
        /// Its watches lag.
        WatchLag,
        /// A session's epoch jumps by two.
        EpochJump,
        /// The store is down.
        StoreDown,
        /// A client's connection breaks.
        ClientBreak,
        /// A client goes to another gateway while the first has not noticed.
        ClientMove,
        /// A client leaves for ever.
        ClientQuit,
        /// A client reads slowly: its backlog is replaced by a snapshot.
        ClientSlow,
        /// A client asks for a resync or a snapshot.
        ClientResync,
        /// A client attaches again on the same connection.
        ClientReattach,
        /// A client sends an op before the one before it.
        ClientDisorder,
        /// The gateway has no room for one op.
        NoRoom,
    }
}

closed_enum! {
    /// Something that must have happened somewhere in a run.
    Seen {
        Acked, EchoHeard, Nacked2xx, FinalNack, Rejected, Gap, Resent, ResentByClient, Dup, TwoHolders,
        SnapshotFirst, SnapshotBehind, SnapshotSlow, SnapshotAsked, EventsResumed, NothingMissed, Skip,
        Rebound, NotOwner, Deposed, WriteConflict, WriteUnknownLanded, WriteUnknownLost, WriteUnknownLate, Parked,
        ZombieSpoke, Handed, Replaced, Reaction, OrphanSettled, Checkpoint, Moving,
    }
}

/// How often each thing happened.
#[derive(Clone, Debug)]
pub struct Counts {
    faults: Vec<u64>,
    seen: Vec<u64>,
    /// Ops sent by clients, first sends.
    pub ops: u64,
    /// Steps of the fault phase.
    pub steps: u64,
}

impl Default for Counts {
    fn default() -> Self {
        Self { faults: vec![0; Fault::ALL.len()], seen: vec![0; Seen::ALL.len()], ops: 0, steps: 0 }
    }
}

impl Counts {
    /// One more.
    pub fn fault(&mut self, fault: Fault) {
        self.faults[fault as usize] += 1;
    }

    /// One more.
    pub fn seen(&mut self, seen: Seen) {
        self.seen[seen as usize] += 1;
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        self.faults.iter_mut().zip(&other.faults).for_each(|(a, b)| *a += b);
        self.seen.iter_mut().zip(&other.seen).for_each(|(a, b)| *a += b);
        self.ops += other.ops;
        self.steps += other.steps;
    }

    /// What never happened.
    pub fn missing(&self) -> Vec<String> {
        let faults = Fault::ALL.iter().filter(|f| self.faults[**f as usize] == 0).map(|f| format!("{f:?}"));
        let seen = Seen::ALL.iter().filter(|s| self.seen[**s as usize] == 0).map(|s| format!("{s:?}"));
        faults.chain(seen).collect()
    }

    /// One line each.
    pub fn table(&self) -> String {
        let faults = Fault::ALL.iter().map(|f| format!("{f:?}={}", self.faults[*f as usize]));
        let seen = Seen::ALL.iter().map(|s| format!("{s:?}={}", self.seen[*s as usize]));
        let all: Vec<_> = faults.chain(seen).collect();
        format!("ops={} steps={} {}", self.ops, self.steps, all.join(" "))
    }
}
