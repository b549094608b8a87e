//! The world: processes, streams, store, directory and the queue of what happens next, in discrete time.

use std::collections::BTreeMap;

use holdfast_core::{
    id::SessionId,
    time::{Mono, Now, Wall},
};

use crate::{
    check::Oracle,
    client::Client,
    config::Config,
    counts::Counts,
    directory::Directory,
    event::{Event, Proc},
    gateway::Gateway,
    net::Net,
    owner::Owner,
    rng::Chance,
    store::Store,
};

/// Wall clock at the start of every run, µs.
const WALL_US: u64 = 1_700_000_000_000_000;
/// Timers that may fire without time moving on, before that is called a spin.
const SPIN_MAX: u32 = 2_000;

/// Everything there is.
pub struct World {
    /// Microseconds since the start.
    pub now: u64,
    serial: u64,
    queue: BTreeMap<(u64, u64), Event>,
    spin: u32,
    /// Chance.
    pub rng: Chance,
    /// Size and faults of this world.
    pub cfg: Config,
    /// The sessions' names.
    pub sessions: Vec<SessionId>,
    /// Lives of gateways, the dead ones too.
    pub gws: Vec<Gateway>,
    /// Lives of owners, the dead ones too.
    pub owners: Vec<Owner>,
    /// Clients.
    pub clients: Vec<Client>,
    /// Streams.
    pub net: Net,
    /// Records.
    pub store: Store,
    /// Placement.
    pub dir: Directory,
    /// What must be true.
    pub oracle: Oracle,
    /// What happened.
    pub counts: Counts,
    /// No faults any more.
    pub healed: bool,
    /// Says what happens, on stderr.
    pub trace: bool,
}

/// Prints a line of the trace, if there is one.
macro_rules! trace {
    ($world:expr, $($arg:tt)*) => {
        if $world.trace {
            eprintln!("{:>10.6} {}", $world.now as f64 / 1e6, format_args!($($arg)*));
        }
    };
}
pub(crate) use trace;

impl World {
    /// A world of `cfg`, with all processes up and all sessions placed.
    pub fn new(seed: u64, trace: bool) -> Self {
        let mut rng = Chance::new(seed);
        let cfg = Config::draw(&mut rng);
        let sessions = (0..cfg.sessions).filter_map(|i| SessionId::parse(&format!("s{i}")).ok()).collect();
        let mut world = Self {
            now: 1_000_000,
            serial: 0,
            queue: BTreeMap::new(),
            spin: 0,
            rng,
            sessions,
            gws: Vec::new(),
            owners: Vec::new(),
            clients: Vec::new(),
            net: Net::default(),
            store: Store::new(cfg.sessions),
            dir: Directory::new(cfg.sessions),
            oracle: Oracle::new(cfg.sessions),
            counts: Counts::default(),
            healed: false,
            trace,
            cfg,
        };
        trace!(world, "world {:?}", world.cfg);
        for node in 0..world.cfg.owners {
            world.start_owner(node);
        }
        world.place_all();
        for slot in 0..world.cfg.gateways {
            world.start_gateway(slot);
        }
        for _ in 0..world.cfg.clients {
            world.start_client();
        }
        world
    }

    /// Both clocks.
    pub fn time(&self) -> Now {
        Now { mono: Mono(self.now), wall: Wall(WALL_US + self.now) }
    }

    /// `event` happens at `at`, after whatever was already planned for then.
    pub fn at(&mut self, at: u64, event: Event) {
        self.serial += 1;
        self.queue.insert((at.max(self.now), self.serial), event);
    }

    /// `event` happens `us` from now.
    pub fn after(&mut self, us: u64, event: Event) {
        self.at(self.now + us, event);
    }

    /// Lets everything happen that is due up to `until`.
    pub fn run_until(&mut self, until: u64) {
        while self.oracle.violation.is_none() {
            let event = self.queue.first_key_value().map_or(u64::MAX, |((at, _), _)| *at);
            let timer = self.next_timer();
            let due = event.min(timer.map_or(u64::MAX, |(at, _, _)| at));
            if due > until {
                break;
            }
            self.tick(due);
            match timer {
                Some((at, proc, session)) if at <= event => self.fire(proc, session),
                _ => {
                    if let Some(((at, _), event)) = self.queue.pop_first() {
                        self.dispatch(at, event);
                    }
                }
            }
        }
        self.now = self.now.max(until);
    }

    fn tick(&mut self, due: u64) {
        if due > self.now {
            self.now = due;
            self.spin = 0;
        }
        self.spin += 1;
        if self.spin > SPIN_MAX {
            self.oracle.violate(0, format!("{SPIN_MAX} things happened without time moving on"));
        }
    }

    fn next_timer(&self) -> Option<(u64, Proc, usize)> {
        let gws = self.gws.iter().enumerate().filter(|(_, g)| g.runs()).flat_map(|(i, g)| {
            g.sessions.iter().filter_map(move |(s, gs)| gs.wake.map(|at| (at, Proc::Gateway(i), *s)))
        });
        let owners = self
            .owners
            .iter()
            .enumerate()
            .filter(|(_, o)| o.runs())
            .flat_map(|(i, o)| o.auths.iter().filter_map(move |(s, a)| a.wake.map(|at| (at, Proc::Owner(i), *s))));
        gws.chain(owners).min()
    }

    fn fire(&mut self, proc: Proc, session: usize) {
        match proc {
            Proc::Gateway(g) => self.with_session(g, session, |s, now, out| s.handle_timeout(now, out)),
            Proc::Owner(o) => self.with_authority(o, session, |a, now, out| a.handle_timeout(now, out)),
        }
    }

    /// Does what is due, unless its process is dead (lost) or stopped (later).
    fn dispatch(&mut self, at: u64, event: Event) {
        if self.is_cut(at, &event) {
            return;
        }
        match event.proc() {
            Some(Proc::Gateway(g)) if !self.gws[g].alive => {}
            Some(Proc::Owner(o)) if !self.owners[o].alive => {}
            Some(Proc::Gateway(g)) if self.gws[g].paused => self.gws[g].backlog.push(event),
            Some(Proc::Owner(o)) if self.owners[o].paused => self.owners[o].backlog.push(event),
            _ => self.handle(event),
        }
    }

    fn is_cut(&self, at: u64, event: &Event) -> bool {
        let pipe = match event {
            Event::ToGateway { conn, .. } => self.net.conns[*conn].up,
            Event::ToClient { conn, .. } => self.net.conns[*conn].down,
            Event::ToOwner { link, .. } => self.net.links[*link].up,
            Event::FromOwner { link, .. } => self.net.links[*link].down,
            _ => return false,
        };
        at > pipe.cut
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::ToGateway { conn, frame, .. } => self.gw_frame(conn, frame),
            Event::GatewayLost { conn, .. } => self.gw_conn_lost(conn),
            Event::Delivered { gw, session, conn, ver } => self.gw_delivered(gw, session, conn, ver),
            Event::Unblock { conn, .. } => self.gw_unblock(conn),
            Event::ToClient { client, conn, frame } => self.client_frame(client, conn, frame),
            Event::ClientLost { client, conn, close } => self.client_lost(client, conn, close),
            Event::ClientWake { client, wake } => self.client_wake(client, wake),
            Event::ToOwner { owner, link, msg } => self.owner_msg(owner, link, msg),
            Event::OwnerLinkLost { owner, link } => self.owner_link_lost(owner, link),
            Event::FromOwner { gw, link, msg } => self.gw_owner_msg(gw, link, msg),
            Event::GatewayLinkLost { gw, link } => self.gw_link_lost(gw, link),
            Event::Dial { gw, boot } => self.gw_dial(gw, boot),
            Event::LinkUp { gw, boot, link } => self.gw_link_up(gw, boot, link),
            Event::Watch { proc, session, route, life } => self.watched(proc, session, route, life),
            Event::Resolve { gw, session } => self.dir_resolve(gw, session),
            Event::Resolved { gw, session, route } => self.gw_resolved(gw, session, route),
            Event::StoreDo { owner, session, incarnation, request } => {
                self.store_do(owner, session, incarnation, request);
            }
            Event::StoreAnswer { owner, session, incarnation, answer } => {
                self.store_answer(owner, session, incarnation, answer);
            }
            Event::Lease { owner } => self.lease_tick(owner),
            Event::Expiry { node, boot } => self.lease_expiry(node, boot),
            Event::Rehome { boot } => self.rehome(boot),
            Event::Moved { session, epoch } => self.dir_move(session, epoch),
            Event::Resume { proc } => self.resume(proc),
            Event::Retire { owner } => self.retire(owner),
            Event::StartOwner { node } => self.start_owner(node),
            Event::StartGateway { slot } => self.start_gateway(slot),
            Event::Thaw => self.thaw(),
            Event::StoreUp => self.store.down = false,
        }
    }

    /// A stopped process goes on, with everything that waited for it.
    pub fn resume(&mut self, proc: Proc) {
        let backlog = match proc {
            Proc::Gateway(g) => {
                self.gws[g].paused = false;
                std::mem::take(&mut self.gws[g].backlog)
            }
            Proc::Owner(o) => {
                self.owners[o].paused = false;
                std::mem::take(&mut self.owners[o].backlog)
            }
        };
        trace!(self, "{proc:?} goes on with {} messages", backlog.len());
        for event in backlog {
            if event.proc().is_some_and(|p| self.is_alive(p)) {
                self.handle(event);
            }
        }
    }

    fn is_alive(&self, proc: Proc) -> bool {
        match proc {
            Proc::Gateway(g) => self.gws[g].alive,
            Proc::Owner(o) => self.owners[o].alive,
        }
    }
}
