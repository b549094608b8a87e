//! How many handshakes are under way, how many of them compute, and how long one waits for that (design 9.1, 9.4).
//!
//! A client that says nothing costs a socket, not a handshake: its place is taken when its first bytes (with TLS, its
//! whole ClientHello) are there. The computing is one step behind that, so it is *turns* that are handed out, in order,
//! and a wait for one is bounded: with CPU for R handshakes a second, a queue without a bound does only handshakes that
//! nobody waits for any more. Few turns also keep the run queue short for the sessions that are established.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// Places and turns. Both numbers may change while they are in use.
#[derive(Debug)]
pub(super) struct Handshakes {
    under_way: AtomicUsize,
    turns: Arc<Semaphore>,
    /// Turns there should be, and turns in use that are to vanish when they come back.
    wanted: Mutex<(usize, usize)>,
}

/// One handshake's place; given back when dropped.
#[derive(Debug)]
pub struct Place(Arc<Handshakes>);

/// Why a handshake does not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoTurn {
    /// As many as may be are under way.
    Full,
    /// It waited as long as it may.
    Late,
}

impl Handshakes {
    pub(super) fn new(turns: usize) -> Arc<Self> {
        let turns = turns.max(1);
        Arc::new(Self {
            under_way: AtomicUsize::new(0),
            turns: Arc::new(Semaphore::new(turns)),
            wanted: Mutex::new((turns, 0)),
        })
    }

    /// Handshakes under way.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// A place, if fewer than `max` are taken.
    pub(super) fn place(self: &Arc<Self>, max: usize) -> Result<Place, NoTurn> {
        let room = |n: usize| (n < max).then_some(n + 1);
        match self.under_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room) {
            Ok(_) => Ok(Place(self.clone())),
            Err(_) => Err(NoTurn::Full),
        }
    }

    /// Waits for a turn, in order, at most `longest`.
    pub(super) async fn turn(self: &Arc<Self>, longest: Duration) -> Result<Turn, NoTurn> {
        let permit = match self.turns.clone().try_acquire_owned() {
            Ok(permit) => permit,
            // The semaphore is never closed: its one error here is that it is empty.
            Err(_) => match timeout(longest, self.turns.clone().acquire_owned()).await {
                Ok(Ok(permit)) => permit,
                _ => return Err(NoTurn::Late),
            },
        };
        Ok(Turn { of: self.clone(), permit: Some(permit) })
    }

    /// Another number of turns. Those in use are not taken away: they vanish when they come back.
    pub(super) fn resize(&self, turns: usize) {
        let turns = turns.max(1);
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let have = wanted.0 + wanted.1;
        if turns >= have {
            self.turns.add_permits(turns - have);
            *wanted = (turns, 0);
        } else {
            let gone = self.turns.forget_permits(have - turns);
            *wanted = (turns, have - turns - gone);
        }
    }

    fn give_back(&self, permit: OwnedSemaphorePermit) {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if wanted.1 > 0 {
            wanted.1 -= 1;
            permit.forget();
        }
    }
}

/// Leave to compute; given back when dropped.
#[derive(Debug)]
pub struct Turn {
    of: Arc<Handshakes>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Turn {
    /// Runs `work`. The turn is over when its first step is done: what it waits for then is the network.
    pub async fn spend<T>(self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let mut turn = Some(self);
        poll_fn(|cx| {
            let polled = work.as_mut().poll(cx);
            turn = None;
            polled
        })
        .await
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.of.give_back(permit);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn places_are_bounded_and_come_back() {
        let all = Handshakes::new(1);
        let first = all.place(2).unwrap();
        let _second = all.place(2).unwrap();
        assert_eq!((all.place(2).unwrap_err(), all.under_way()), (NoTurn::Full, 2));
        drop(first);
        assert!(all.place(2).is_ok());
    }

    #[tokio::test]
    async fn turns_are_waited_for_and_not_for_long() {
        let all = Handshakes::new(1);
        let first = all.turn(Duration::ZERO).await.unwrap();
        assert_eq!(all.turn(Duration::from_millis(5)).await.unwrap_err(), NoTurn::Late);
        let mut waiting = pin!(all.turn(Duration::from_secs(60)));
        assert!((&mut waiting).now_or_never().is_none());
        drop(first);
        assert!(waiting.await.is_ok());
    }

    #[tokio::test]
    async fn a_turn_ends_with_the_first_step() {
        let all = Handshakes::new(1);
        let turn = all.turn(Duration::ZERO).await.unwrap();
        let (network, heard) = tokio::sync::oneshot::channel::<()>();
        let mut work = pin!(turn.spend(heard));
        assert!((&mut work).now_or_never().is_none());
        assert!(all.turn(Duration::ZERO).await.is_ok(), "while the work waits for its network");
        network.send(()).unwrap();
        assert_eq!(work.await, Ok(()));
    }

    #[tokio::test]
    async fn fewer_turns_hold_when_those_in_use_come_back() {
        let all = Handshakes::new(3);
        let turns = [all.turn(Duration::ZERO).await.unwrap(), all.turn(Duration::ZERO).await.unwrap()];
        all.resize(1);
        assert!(all.turn(Duration::ZERO).await.is_err());
        drop(turns);
        let one = all.turn(Duration::ZERO).await.unwrap();
        assert!(all.turn(Duration::ZERO).await.is_err());
        all.resize(2);
        assert!(all.turn(Duration::ZERO).await.is_ok());
        drop(one);
    }
}
