//! One wave: an event queue, the survivors' gates, and clients.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use holdfast_core::{
    admission::{
        Admission, AdmissionConfig, Ask, Class, FleetKeys, Key, Pace, ReservingGcra, ResumeToken, Verdict,
        client::{Heard, Policy, Reconnect},
        gcra::Reserved,
        rank::spread,
    },
    time::{Mono, Now, Wall},
};
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};

const START_US: u64 = 1_000_000_000;
const WALL_US: u64 = 1_700_000_000_000_000;
/// Clients notice within this that their gateway is gone.
const NOTICE: Duration = Duration::from_millis(1000);
/// One way to the gateway and the answer back, together.
const ROUND_TRIP: std::ops::Range<u64> = 2_000..80_000;

/// Base and cap of the jitter of clients that a plain limiter tells nothing: the design names none; these come closest to its
/// figures. (With the protocol's own 250 ms and 8 s they are in after 15 s, with 3.9 attempts.)
const JITTER: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// What happens.
#[derive(Clone, Copy, Debug)]
pub struct Wave {
    pub clients: u32,
    /// R of each survivor.
    pub rate_per_s: u32,
    pub survivors: u32,
    pub policy: Policy,
    /// Fraction that hammers instead.
    pub hammering: f64,
    /// The survivors tell nobody a slot and remember nobody: a plain limiter.
    pub plain: bool,
    /// What the first survivor gets above its equal part of the clients.
    pub skew: f64,
    pub seed: u64,
}

/// What came of it; times from the gateway's death.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub all_in: Duration,
    pub p99: Duration,
    /// Per client.
    pub attempts: f64,
    pub refused: u64,
    /// At one survivor, in any second.
    pub most_in_1_s: usize,
    pub hammering_median: Duration,
    pub polite_median: Duration,
    pub polite_p99: Duration,
}

struct Client {
    hammers: bool,
    reconnect: Reconnect,
    resume: Vec<u8>,
    ticket: Option<[u8; 44]>,
    /// Tries, and its last wait: for those that are told nothing.
    tries: u32,
    waited: Duration,
}

impl Client {
    fn next(&mut self, wave: &Wave, heard: Heard, draw: f64) -> Duration {
        if wave.plain { self.jitter(wave.policy, draw) } else { self.reconnect.next_attempt(heard, draw) }
    }

    fn jitter(&mut self, policy: Policy, draw: f64) -> Duration {
        let (base, cap) = JITTER;
        self.waited = match policy {
            Policy::FullJitter => (base * 2_u32.saturating_pow(self.tries)).min(cap).mul_f64(draw),
            _ => (base + (3 * self.waited.max(base) - base).mul_f64(draw)).min(cap),
        };
        self.tries += 1;
        self.waited
    }
}

enum Gate {
    Holdfast(Box<Admission>),
    Plain(ReservingGcra),
}

impl Wave {
    /// Runs it to the last client.
    pub fn run(&self) -> Outcome {
        let keys = FleetKeys::new(Key::new(1, &[3; 32]), vec![]);
        let mut rng = SmallRng::seed_from_u64(self.seed);
        let config = AdmissionConfig { rate_per_s: self.rate_per_s, ..AdmissionConfig::default() };
        let gate = || {
            if self.plain {
                Gate::Plain(ReservingGcra::default())
            } else {
                Gate::Holdfast(Box::new(Admission::new(config)))
            }
        };
        let mut gates: Vec<_> = (0..self.survivors).map(|_| gate()).collect();
        let spread = spread(self.clients, f64::from(self.rate_per_s * self.survivors));
        let mut clients = Vec::new();
        let mut queue = BinaryHeap::new();
        for i in 0..self.clients {
            let mut client = self.client(&keys, &mut rng);
            let heard = Heard::Cut { spread, rank_ppm: rng.random_range(0..1_000_000) };
            let notice = NOTICE.mul_f64(rng.random());
            let wait = client.next(self, heard, rng.random());
            queue.push(Reverse((Mono(START_US).after(notice + wait), i)));
            clients.push(client);
        }
        let (mut attempts, mut entered) = (0u64, vec![Vec::new(); gates.len()]);
        let (mut cheats, mut polite) = (Vec::new(), Vec::new());
        while let Some(Reverse((mono, i))) = queue.pop() {
            let client = &mut clients[i as usize];
            let now = Now { mono, wall: Wall(WALL_US + mono.0 - START_US) };
            let at = self.survivor(&mut rng);
            attempts += 1;
            let ask = Ask { ticket: client.ticket.as_ref().map(|t| &t[..]), resume: Some(&client.resume), keys: &keys };
            let verdict = match &mut gates[at] {
                Gate::Holdfast(gate) => gate.ask(now, &ask, rng.random()).verdict,
                Gate::Plain(limiter) => plain(limiter, self.rate_per_s, mono),
            };
            let heard = match verdict {
                Verdict::Admit { hold, .. } => {
                    let inside = mono.after(hold);
                    entered[at].push(inside.0);
                    let of = if client.hammers { &mut cheats } else { &mut polite };
                    of.push(inside.0 - START_US);
                    continue;
                }
                Verdict::Slot { wait, ticket, .. } => {
                    client.ticket = Some(ticket);
                    Heard::At(wait)
                }
                Verdict::Full { wait } => Heard::At(wait),
            };
            let wait = client.next(self, heard, rng.random());
            queue.push(Reverse((mono.after(wait + Duration::from_micros(rng.random_range(ROUND_TRIP))), i)));
        }
        self.outcome(attempts, &mut entered, (cheats, polite))
    }

    fn client(&self, keys: &FleetKeys, rng: &mut SmallRng) -> Client {
        let hammers = rng.random_bool(self.hammering);
        let token = ResumeToken {
            client: rng.random(),
            class: Class::Game,
            gateway: [0; 8],
            srtt_us: 0,
            rtt_bound_us: 0,
            issued: Wall(WALL_US - 3_600_000_000),
        };
        let policy = if hammers { Policy::Hammer } else { self.policy };
        Client {
            hammers,
            reconnect: Reconnect::new(policy),
            resume: token.seal(keys).to_vec(),
            ticket: None,
            tries: 0,
            waited: Duration::ZERO,
        }
    }

    /// Where the balancer sends a connection.
    fn survivor(&self, rng: &mut SmallRng) -> usize {
        if rng.random_bool(self.skew * f64::from(self.survivors) / f64::from(self.survivors.max(2) - 1).max(1.0) / 2.0)
        {
            return 0;
        }
        rng.random_range(0..self.survivors as usize)
    }

    fn outcome(&self, attempts: u64, entered: &mut [Vec<u64>], (cheats, polite): (Vec<u64>, Vec<u64>)) -> Outcome {
        let mut most_in_1_s = 0;
        for times in entered.iter_mut() {
            times.sort_unstable();
            let in_1_s = |i: usize| times[i..].partition_point(|t| *t < times[i] + 1_000_000);
            most_in_1_s = most_in_1_s.max((0..times.len()).map(in_1_s).max().unwrap_or(0));
        }
        let all = [cheats.as_slice(), polite.as_slice()].concat();
        assert_eq!(all.len(), self.clients as usize);
        Outcome {
            all_in: quantile(&all, 1.0),
            p99: quantile(&all, 0.99),
            attempts: attempts as f64 / f64::from(self.clients),
            refused: attempts - all.len() as u64,
            most_in_1_s,
            hammering_median: quantile(&cheats, 0.5),
            polite_median: quantile(&polite, 0.5),
            polite_p99: quantile(&polite, 0.99),
        }
    }
}

/// In, or away with nothing but a no.
fn plain(limiter: &ReservingGcra, rate_per_s: u32, now: Mono) -> Verdict {
    let pace = Pace::new(f64::from(rate_per_s), AdmissionConfig::default().burst);
    match limiter.reserve(now, pace, Duration::ZERO) {
        Reserved::Now => Verdict::Admit { class: Class::Anonymous, slot_lag: None, hold: Duration::ZERO },
        Reserved::At(_) | Reserved::Beyond => Verdict::Full { wait: Duration::ZERO },
    }
}

fn quantile(of: &[u64], q: f64) -> Duration {
    let mut sorted = of.to_vec();
    sorted.sort_unstable();
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).map_or(Duration::ZERO, |us| Duration::from_micros(*us))
}
