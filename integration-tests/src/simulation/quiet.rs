//! The search for states of the store that last for too long: a lock that is free although a request waits, and an entry that no client
//! uses.

use std::{collections::BTreeMap, time::Duration};

use super::{
    live_entry::LiveEntry,
    network::nanos,
    plan::{Plan, SETTLED, StoreKind},
    servers::Events,
    violation::Violation,
    workload::ANY,
};

/// The longest time for which a lock may stay free although a request waits: a recheck, and the time limits of lost messages before.
const LONGEST_FREE: Duration = Duration::from_secs(2);

/// The same for a store without notifications: a poll, and the time for which a process leaves the lock to others.
const LONGEST_FREE_POLLED: Duration = Duration::from_millis(2500);

/// The longest time between a grant at the server and the begin of its section, and between the end of a section and its release.
const LONGEST_UNKNOWN: Duration = Duration::from_millis(800);

/// The same in MySQL. A process does not look up the requests of its own clients, whose waiters are notified by the release. If another process
/// releases one by its handle, the waiters find that when they check the store: the first one of a process at most a second later, the others at
/// the next keep-alive, after a third of a queue lease. So do those of PostgreSQL if the connection that listens has ended without a sign, and those
/// of the lock service if the connection of the wait has. SQLite polls less often if a poll takes long.
const LONGEST_RECHECKED: Duration = Duration::from_secs(2);

/// The same in the time after faults: a release that has failed is repeated.
const LONGEST_LEFT: Duration = Duration::from_secs(1);

/// The same in a store with sessions: one that its client has given up in an outage ends after its timeout and two ticks; and a connection that
/// has lost bytes ends up to three seconds later, before its client can delete what a late message has left.
const LONGEST_SESSION: Duration = Duration::from_secs(6);

/// The same in a store that notifies the waiter, for a link without delay and in round trips: less than the time between two rechecks of
/// most waiters, so that a lost notification is found.
const LONGEST_UNNOTICED: (Duration, u32) = (Duration::from_millis(100), 5);

/// The longest round trip of a Redis connection that no request takes for broken: the time limit of the shortest lease.
pub const LONGEST_ROUND_TRIP: Duration = Duration::from_millis(60);

/// The states that should end soon, and the times at which they were found.
#[derive(Debug, Default)]
pub struct Quiet {
    since: BTreeMap<String, u64>,
    is_settled: bool,
}

/// A state that should end soon.
#[derive(Debug)]
struct Bad {
    kind: &'static str,
    /// The time from which it counts, unless it begins later.
    from: u64,
    /// The longest time that it may last.
    longest: Duration,
}

impl Quiet {
    /// Looks at the store, which has the entries `live`. Returns the states that have lasted for too long.
    pub fn look(
        &mut self,
        now: u64,
        plan: &Plan,
        round_trip: Duration,
        live: &[LiveEntry],
        events: &Events<'_>,
    ) -> Vec<Violation> {
        if !self.is_settled && now >= nanos(plan.late_time(SETTLED)) {
            *self = Self { is_settled: true, ..Self::default() };
        }
        let bad = self.bad(plan, round_trip, live, events);
        self.since.retain(|what, _| bad.contains_key(what));
        let quiet_from = nanos(plan.disturbed_until(Duration::from_nanos(now)));
        let mut violations = Vec::new();
        for (what, Bad { kind, from, longest }) in bad {
            let since = self.since.entry(what.clone()).or_insert(now);
            let from = quiet_from.max(from).max(*since);
            if now.saturating_sub(from) > nanos(longest) {
                violations.push(Violation::new(from, kind, what));
                // It is reported once.
                *since = u64::MAX;
            }
        }
        violations
    }

    /// Returns the states that should end soon.
    fn bad(
        &self,
        plan: &Plan,
        round_trip: Duration,
        live: &[LiveEntry],
        events: &Events<'_>,
    ) -> BTreeMap<String, Bad> {
        let longest = match plan.store {
            store if self.is_settled => longest_unknown(store, round_trip),
            StoreKind::Zookeeper => LONGEST_SESSION,
            store => plan.time(LONGEST_LEFT).max(longest_unknown(store, round_trip)),
        };
        // The entries of a process that has ended last as long as their leases.
        let lives = |entry: &&LiveEntry| {
            self.is_settled || entry.owner.as_ref().is_none_or(|owner| events.living(owner).is_some())
        };
        let mut bad = BTreeMap::new();
        for entry in live.iter().filter(lives) {
            let LiveEntry { name, token, owner, is_free_to_go } = entry;
            let of = owner.as_ref().map(|owner| format!(" of {owner}")).unwrap_or_default();
            if let Some((from, patience)) = events.record.unused(entry) {
                let what = match token {
                    Some(token) => format!("orphan: no client has the hold of {name} with token {token}{of}"),
                    None => format!("orphan: no client has the queue entry of {name}{of}"),
                };
                bad.insert(what, Bad { kind: "orphan", from, longest: longest + patience });
            }
            if *is_free_to_go {
                let what = format!("lost wake-up: {name} is free, and a request{of} waits");
                bad.insert(what, Bad { kind: "lost wake-up", from: 0, longest: LONGEST_FREE });
            }
        }
        if plan.store == StoreKind::Azure {
            // The service does not know the waiters.
            for (client, lock, _) in &events.record.waiting {
                if *lock != ANY && live.iter().all(|entry| entry.name.as_str() != *lock) {
                    let what = format!("lost wake-up: {lock} is free, and {client} waits");
                    bad.insert(what, Bad { kind: "lost wake-up", from: 0, longest: LONGEST_FREE_POLLED });
                }
            }
        }
        bad
    }
}

/// Returns the longest time between a grant at the server and the begin of its section, while there are no faults.
fn longest_unknown(store: StoreKind, round_trip: Duration) -> Duration {
    match store {
        // A request with a short lease takes the connection for broken before a reply can arrive, again and again.
        StoreKind::Redis if round_trip > LONGEST_ROUND_TRIP => 2 * LONGEST_UNKNOWN,
        StoreKind::Queue | StoreKind::Redis | StoreKind::Zookeeper => {
            LONGEST_UNNOTICED.0 + LONGEST_UNNOTICED.1 * round_trip
        }
        // One store after the other, and the raise of a token in each of them.
        StoreKind::Both => LONGEST_UNNOTICED.0 + 2 * LONGEST_UNNOTICED.1 * round_trip,
        StoreKind::Mysql | StoreKind::Postgres | StoreKind::Service | StoreKind::Sqlite => LONGEST_RECHECKED,
        StoreKind::Redlock => LONGEST_UNKNOWN,
        // Its leases last for whole seconds.
        StoreKind::Azure => LONGEST_UNKNOWN + Duration::from_secs(1),
    }
}
