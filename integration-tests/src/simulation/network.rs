//! The network between the processes and the servers. Each direction of each link delays, loses, repeats and reorders messages on its
//! own. A message that was sent arrives whether or not the sender still waits.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use polylock_core::sync::lock;

use super::{
    plan::{between, stream},
    time::{MS, Time},
};

/// The number of messages that are late or lost for each one that is so at other times.
const LOUD: u16 = 8;

/// The directions of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the process to the server.
    There,
    /// From the server to the process.
    Back,
}

/// The links between processes and servers.
#[derive(Debug)]
pub struct Network {
    time: Arc<Time>,
    /// Single messages are late or lost until this time.
    noisy_until: u64,
    /// Many messages are late or lost until this time.
    loud_until: AtomicU64,
    late: Late,
    links: Mutex<Vec<[Direction; 2]>>,
}

/// The single messages that are late.
#[derive(Debug)]
pub struct Late {
    /// Their number in a thousand messages.
    pub per_mille: u16,
    /// The shortest and the longest delay, in milliseconds.
    pub ms: Range<u64>,
}

#[derive(Debug)]
struct Direction {
    random: Rng,
    /// The longest delay without a fault.
    latency: u64,
    cut_until: u64,
    slow_until: u64,
    slow_by: Duration,
}

impl Network {
    /// Creates the network of a run, with this number of links, which take these times at most, in milliseconds.
    #[must_use]
    pub fn new(
        time: Arc<Time>,
        seed: u64,
        noisy_until: u64,
        links: usize,
        latencies: [u64; 3],
        late: Late,
    ) -> Arc<Self> {
        let direction = |link: usize, way| {
            let mut random = stream(seed, &[1, link as u64, way]);
            let latency = MS * latencies[random.usize(..3)];
            Direction { random, latency, cut_until: 0, slow_until: 0, slow_by: Duration::ZERO }
        };
        let links = (0..links).map(|link| [direction(link, 0), direction(link, 1)]).collect();
        Arc::new(Self { time, noisy_until, loud_until: AtomicU64::new(0), late, links: Mutex::new(links) })
    }

    /// Returns the longest time of a request and its reply on any link, without a fault.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        let links = lock(&self.links);
        let longest = links.iter().map(|[there, back]| there.latency + back.latency).max();
        Duration::from_nanos(longest.unwrap_or_default())
    }

    /// Returns the longest time of a request and its reply on this link, without a fault.
    #[must_use]
    pub fn round_trip_of(&self, link: usize) -> Duration {
        let [there, back] = &lock(&self.links)[link];
        Duration::from_nanos(there.latency + back.latency)
    }

    /// Cuts one direction of a link until `until`. A message that is sent meanwhile is lost, or arrives after that.
    pub fn cut(&self, link: usize, way: Way, until: u64) {
        let direction = &mut lock(&self.links)[link][way as usize];
        direction.cut_until = direction.cut_until.max(until);
    }

    /// Delays the messages of a link by up to `by` until `until`.
    pub fn slow(&self, link: usize, by: Duration, until: u64) {
        for direction in &mut lock(&self.links)[link] {
            (direction.slow_until, direction.slow_by) = (until, by);
        }
    }

    /// Delays and loses many messages of all links until `until`.
    pub fn make_noise(&self, until: u64) {
        self.loud_until.fetch_max(until, Ordering::Relaxed);
    }

    /// Sends a message: calls `deliver` when it arrives, if it does.
    pub fn send(&self, link: usize, way: Way, deliver: impl FnOnce() + Send + 'static) {
        if let Some(at) = self.arrival(link, way) {
            self.time.at(at, deliver);
        }
    }

    /// Returns the time at which a message that is sent now arrives; `None` if it is lost.
    pub fn arrival(&self, link: usize, way: Way) -> Option<u64> {
        let now = self.time.now();
        let direction = &mut lock(&self.links)[link][way as usize];
        let random = &mut direction.random;
        let mut at = now + random.u64(MS / 10..direction.latency);
        let noise = match now {
            now if now < self.loud_until.load(Ordering::Relaxed) => Some(LOUD),
            now if now < self.noisy_until => Some(1),
            _ => None,
        };
        if let Some(noise) = noise {
            match random.u16(..1000) / noise {
                0..5 => return None,
                number if number < 5 + self.late.per_mille => {
                    at += nanos(between(random, self.late.ms.clone()));
                }
                5..40 => at += nanos(between(random, 1..100)),
                _ => {}
            }
        }
        if now < direction.slow_until {
            at += random.u64(..=nanos(direction.slow_by));
        }
        if now < direction.cut_until {
            if random.bool() {
                return None;
            }
            at = direction.cut_until + nanos(between(random, 0..200));
        }
        Some(at)
    }
}

/// Returns `time` in nanoseconds.
#[must_use]
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
