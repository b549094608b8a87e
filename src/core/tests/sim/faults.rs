//! One step of the fault phase: clients act, and sometimes something breaks.

use crate::{
    client::Wake,
    counts::Fault,
    event::{Event, Proc},
    world::{World, trace},
};

impl World {
    /// This world has this fault.
    pub fn has(&self, fault: Fault) -> bool {
        self.cfg.faults.contains(&fault)
    }

    /// One step: somebody acts, then time goes on.
    pub fn step(&mut self) {
        self.counts.steps += 1;
        let client = self.rng.index(self.clients.len());
        match self.rng.below(100) {
            0..60 => self.client_op(client, false),
            60..66 => self.client_react(client),
            _ => {}
        }
        if self.rng.per_mille(self.cfg.fault_per_mille)
            && let Some(fault) = self.rng.pick(&self.cfg.faults.clone())
            && self.inflict(fault)
        {
            trace!(self, "fault {fault:?}");
            self.counts.fault(fault);
        }
        let us = match self.rng.below(100) {
            0..70 => self.rng.below(20_000),
            70..95 => self.rng.range(20_000, 300_000),
            _ => self.rng.range(300_000, 3_000_000),
        };
        self.run_until(self.now + us);
        self.check_pinned();
    }

    fn inflict(&mut self, fault: Fault) -> bool {
        match fault {
            Fault::OwnerCrash | Fault::OwnerBounce | Fault::OwnerPause | Fault::LeaseRevoked | Fault::OwnerDrain => {
                self.hurt_owner(fault)
            }
            Fault::GatewayCrash | Fault::GatewayPause | Fault::Partition => self.hurt_gateway(fault),
            Fault::LinkFlap | Fault::LinkStall => self.hurt_link(fault),
            Fault::DirectoryFrozen | Fault::WatchLag | Fault::EpochJump | Fault::StoreDown => self.hurt_etcd(fault),
            Fault::NoRoom => false, // drawn with each op
            _ => self.hurt_client(fault),
        }
    }

    fn hurt_owner(&mut self, fault: Fault) -> bool {
        let running: Vec<_> = (0..self.owners.len()).filter(|o| self.owners[*o].runs()).collect();
        let Some(owner) = self.rng.pick(&running) else { return false };
        let (node, boot) = (self.owners[owner].node, self.owners[owner].boot);
        match fault {
            Fault::OwnerCrash => {
                self.kill_owner(owner);
                let us = self.rng.range(1_000_000, 12_000_000);
                self.after(us, Event::StartOwner { node });
            }
            Fault::OwnerBounce => {
                self.kill_owner(owner);
                let us = self.rng.range(10_000, 400_000);
                self.after(us, Event::StartOwner { node });
            }
            Fault::OwnerPause => {
                self.owners[owner].paused = true;
                let us = self.rng.range(50_000, 9_000_000);
                self.after(us, Event::Resume { proc: Proc::Owner(owner) });
            }
            Fault::LeaseRevoked => {
                if self.dir.frozen || !self.dir.nodes.iter().any(|n| n.boot == boot) {
                    return false;
                }
                self.lease_gone(boot);
            }
            _ => return self.drain_owner(owner),
        }
        true
    }

    fn drain_owner(&mut self, owner: usize) -> bool {
        let (node, boot) = (self.owners[owner].node, self.owners[owner].boot);
        let others = self.dir.nodes.iter().filter(|n| !n.draining && n.boot != boot).count();
        if self.owners[owner].draining || others == 0 || self.dir.frozen {
            return false;
        }
        if let Some(n) = self.dir.nodes.iter_mut().find(|n| n.boot == boot) {
            n.draining = true;
        }
        self.owners[owner].draining = true;
        for session in self.owners[owner].auths.keys().copied().collect::<Vec<_>>() {
            self.with_authority(owner, session, |a, now, out| a.handle_drain(now, out));
        }
        // a new life takes the node over in the end
        self.after(8_000_000, Event::Retire { owner });
        self.after(8_500_000, Event::StartOwner { node });
        true
    }

    fn hurt_gateway(&mut self, fault: Fault) -> bool {
        let running: Vec<_> = (0..self.gws.len()).filter(|g| self.gws[*g].runs()).collect();
        let Some(gw) = self.rng.pick(&running).filter(|_| running.len() > 1 || fault == Fault::Partition) else {
            return false;
        };
        match fault {
            Fault::GatewayCrash => {
                let slot = self.gws[gw].slot;
                self.kill_gateway(gw);
                let us = self.rng.range(100_000, 5_000_000);
                self.after(us, Event::StartGateway { slot });
            }
            Fault::GatewayPause => {
                self.gws[gw].paused = true;
                let us = self.rng.range(20_000, 8_000_000);
                self.after(us, Event::Resume { proc: Proc::Gateway(gw) });
                for conn in 0..self.net.conns.len() {
                    if self.net.conns[conn].gw == gw && self.net.conns[conn].open && us > 6_000_000 {
                        self.cut_conn(conn, self.now + 6_000_000, 0, 0);
                    }
                }
            }
            _ => {
                self.gws[gw].cut_off_until = self.now + self.rng.range(100_000, 20_000_000);
                for link in self.gws[gw].links.values().copied().collect::<Vec<_>>() {
                    self.cut_link(link);
                }
            }
        }
        true
    }

    fn hurt_link(&mut self, fault: Fault) -> bool {
        let up: Vec<_> = (0..self.net.links.len()).filter(|l| self.net.links[*l].down.is_whole()).collect();
        let Some(link) = self.rng.pick(&up) else { return false };
        if fault == Fault::LinkFlap {
            self.cut_link(link);
            return true;
        }
        let (now, us) = (self.now, self.rng.range(10_000, 2_500_000));
        if self.rng.per_mille(500) {
            self.net.links[link].up.stall(now, us);
        } else {
            self.net.links[link].down.stall(now, us);
        }
        true
    }

    fn hurt_etcd(&mut self, fault: Fault) -> bool {
        match fault {
            Fault::DirectoryFrozen if !self.dir.frozen => {
                let us = self.rng.range(500_000, 15_000_000);
                self.freeze(us);
            }
            Fault::WatchLag => self.dir.lag_us = self.rng.pick(&[0, 300_000, 3_000_000]).unwrap_or(0),
            Fault::EpochJump if !self.dir.frozen => {
                let session = self.rng.index(self.cfg.sessions);
                self.place(session, 2);
            }
            Fault::StoreDown if !self.store.down => {
                self.store.down = true;
                let us = self.rng.range(100_000, 8_000_000);
                self.after(us, Event::StoreUp);
            }
            _ => return false,
        }
        true
    }

    fn hurt_client(&mut self, fault: Fault) -> bool {
        let connected: Vec<_> = (0..self.clients.len()).filter(|c| self.clients[*c].conn.is_some()).collect();
        let Some(client) = self.rng.pick(&connected) else { return false };
        let Some(conn) = self.clients[client].conn else { return false };
        let (now, us) = (self.now, self.rng.below(3_000));
        match fault {
            Fault::ClientBreak => {
                let noticed = self.rng.range(0, 3_000_000);
                self.cut_conn(conn, now + us, 0, noticed);
            }
            Fault::ClientMove => {
                let noticed = self.rng.range(100_000, 6_000_000);
                self.cut_conn(conn, now + us, 0, noticed);
                self.net.conns[conn].down.cut_at(now);
                self.client_drop(client);
                self.client_wake(client, Wake::Connect);
            }
            Fault::ClientQuit => {
                let left = self.clients.iter().filter(|c| !c.gone && c.session == self.clients[client].session).count();
                if left < 2 {
                    return false;
                }
                let noticed = self.rng.range(0, 500_000);
                self.cut_conn(conn, now + us, 0, noticed);
                self.client_drop(client);
                self.clients[client].gone = true;
            }
            Fault::ClientSlow => {
                let us = self.rng.range(50_000, 3_000_000);
                self.block_client(conn, us);
            }
            Fault::ClientResync => {
                let snapshot = self.rng.per_mille(500);
                self.client_resync(client, snapshot);
            }
            Fault::ClientReattach => {
                self.clients[client].resend_all = true;
                self.client_attach(client);
            }
            _ => {
                self.client_op(client, true);
                self.client_op(client, false);
            }
        }
        true
    }
}
