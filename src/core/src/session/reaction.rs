//! Reactions, both ways: never late, never from an old epoch (design 6.5).

use crate::{
    id::ConnId,
    proto::{client_frame, gateway_msg, owner_msg, server_frame, server_frame::F},
    session::{Action, Observation, ReactionDrop, Session, attach::deliver, attachment::Attachment},
    time::Now,
};

impl Session {
    /// A reaction from a client.
    pub fn handle_reaction(&mut self, now: Now, conn: ConnId, reaction: client_frame::Reaction, out: &mut Vec<Action>) {
        if let Err(why) = self.reaction_up(now, conn, reaction, out) {
            out.push(Action::Observe(Observation::ReactionDropped(why)));
        }
    }

    fn reaction_up(
        &mut self,
        now: Now,
        conn: ConnId,
        reaction: client_frame::Reaction,
        out: &mut Vec<Action>,
    ) -> Result<(), ReactionDrop> {
        let epoch = self.binding.as_ref().filter(|b| b.joined).map(|b| b.epoch).ok_or(ReactionDrop::NoOwner)?;
        let (rate, burst) = (self.limits.reaction_rate_per_s, self.limits.reaction_burst);
        let att = self.atts.get_mut(&conn).filter(|a| a.is_answered()).ok_or(ReactionDrop::NoOwner)?;
        if reaction.epoch != epoch {
            return Err(ReactionDrop::Stale);
        }
        if reaction.payload.len() > self.limits.payload_bytes_max {
            return Err(ReactionDrop::TooLarge);
        }
        att.reactions.take(now.mono, rate, burst).map_err(|_| ReactionDrop::Rate)?;
        let msg = gateway_msg::Reaction {
            session: self.id.to_string(),
            epoch,
            age_us: 0,
            class: reaction.class,
            att: att.client.att,
            content: reaction.content,
            payload: reaction.payload,
            counts: Vec::new(),
        };
        self.send(gateway_msg::M::Reaction(msg), out);
        Ok(())
    }

    /// A reaction from the owner; its epoch has been fenced already.
    pub(super) fn reaction_down(&mut self, now: Now, msg: owner_msg::Reaction, out: &mut Vec<Action>) {
        let current = self.route.as_ref().map_or(0, |r| r.epoch);
        let ttl_us = u64::try_from(self.limits.reaction_ttl.as_micros()).unwrap_or(u64::MAX);
        let dropped = match () {
            () if msg.epoch < current && !crate::mutant::on(crate::mutant::Mutant::StaleEpochDelivered) => {
                Some(ReactionDrop::Stale)
            }
            () if u64::from(msg.age_us) > ttl_us => Some(ReactionDrop::Late),
            () => None,
        };
        if let Some(why) = dropped {
            out.push(Action::Observe(Observation::ReactionDropped(why)));
            return;
        }
        let live = |a: &&Attachment| a.is_answered() && a.epoch <= msg.epoch;
        let conns: Vec<_> = self.atts.values().filter(live).map(Attachment::conn).collect();
        out.push(Action::Observe(Observation::ReactionDelivered { to: conns.len() }));
        let frame = F::Reaction(server_frame::Reaction {
            session: self.id.to_string(),
            epoch: msg.epoch,
            emitted_at_us: now.wall.0.saturating_sub(u64::from(msg.age_us)),
            class: msg.class,
            actor: msg.actor,
            content: msg.content,
            payload: msg.payload,
            counts: msg.counts,
        });
        match conns.as_slice() {
            [] => {}
            [conn] => out.push(deliver(*conn, frame)),
            _ => out.push(Action::Fanout { conns, frame, stamp: false }),
        }
    }
}
