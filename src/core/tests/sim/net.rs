//! Streams: first in, first out, each with its own delay, until they are cut.

/// One direction of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Pipe {
    last: u64,
    lost: bool,
    /// Nothing arrives after this, µs.
    pub cut: u64,
}

impl Default for Pipe {
    fn default() -> Self {
        Self { last: 0, lost: false, cut: u64::MAX }
    }
}

impl Pipe {
    /// When something sent now arrives, never before what was sent earlier; `None` = never.
    pub fn send(&mut self, now: u64, delay: u64) -> Option<u64> {
        let at = self.last.max(now + delay);
        if self.lost || at > self.cut {
            self.lost = true; // nothing gets through after something was lost
            return None;
        }
        self.last = at;
        Some(at)
    }

    /// Everything under way waits for `us` more.
    pub fn stall(&mut self, now: u64, us: u64) {
        self.last = self.last.max(now + us);
    }

    /// Nothing arrives after `at`.
    pub fn cut_at(&mut self, at: u64) {
        self.cut = self.cut.min(at);
    }

    /// Nothing has cut it yet.
    pub fn is_whole(&self) -> bool {
        self.cut == u64::MAX
    }
}

/// A client's connection to a gateway process.
#[derive(Debug)]
pub struct Conn {
    /// Whose.
    pub client: usize,
    /// To which gateway process.
    pub gw: usize,
    /// Client to gateway.
    pub up: Pipe,
    /// Gateway to client.
    pub down: Pipe,
    /// The gateway has not noticed its end.
    pub open: bool,
}

/// A stream between a gateway process and an owner process.
#[derive(Debug)]
pub struct Link {
    /// The dialler.
    pub gw: usize,
    /// The dialled life of a node.
    pub owner: usize,
    /// Gateway to owner.
    pub up: Pipe,
    /// Owner to gateway.
    pub down: Pipe,
}

/// All streams there ever were; the index is the id.
#[derive(Debug, Default)]
pub struct Net {
    /// Client connections.
    pub conns: Vec<Conn>,
    /// Owner links.
    pub links: Vec<Link>,
}
