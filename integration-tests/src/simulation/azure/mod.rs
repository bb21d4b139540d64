//! The service of the real client of Azure Blob Storage. The SDK talks to it byte by byte.
//!
//! | module | part |
//! |---|---|
//! | [`service`], [`http`] | the service; its protocol |
//! | [`blobs`] | its blobs and their leases |

pub mod blobs;
pub mod http;
pub mod service;

use std::{sync::Arc, time::Duration};

use polylock_azure::Config;
use polylock_core::{Clock, FencingToken, LockName, SystemClock, simulation::Connecting};

use self::{blobs::Grant, service::Service};
use super::{
    check,
    clock::WallClock,
    live_entry::LiveEntry,
    network::{Network, nanos},
    plan::{Plan, stream},
    servers::{Events, Life, Opening, Servers},
    socket::Wires,
    time::Time,
    timeline::Timeline,
    violation::Violation,
};

/// The path of the locks' blobs in the container.
const PREFIX: &str = "polylock/";

/// The greatest time on the service's clock at the begin of a run, in nanoseconds.
const CLOCK_SPREAD: u64 = 200_000_000_000;

/// The time for which a machine sends bytes again. The crate waits as long for late acquisitions.
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// The pause between attempts to open the store.
const REOPEN: Duration = Duration::from_millis(50);

/// The longest time for which a process leaves a lease that none of its clients has, unless it or its connections fail: the time limit of a
/// release, the pause after it, and the longest delay of the next one.
const LONGEST_UNHELD: Duration = Duration::from_secs(14);

/// The longest time after which the holder notices a break: its next renewal, after a third of the longest lease.
const LONGEST_UNNOTICED: Duration = Duration::from_secs(8);

/// The time for which a fault delays renewals after its end: a pause that the service has requested, and a connection that does not reply.
const LONGEST_AFTERMATH: Duration = Duration::from_secs(7);

/// The service of a run.
#[derive(Debug)]
pub struct AzureServers {
    plan: Plan,
    wires: Arc<Wires>,
    service: Arc<Service>,
}

impl AzureServers {
    /// Creates the service of `plan`, which is up.
    #[must_use]
    pub fn new(
        plan: &Plan,
        (time, network, timeline): (Arc<Time>, Arc<Network>, Arc<Timeline>),
    ) -> Arc<Self> {
        let clock = WallClock::draw_within(time.clone(), &mut stream(plan.seed, &[9]), CLOCK_SPREAD);
        let random = stream(plan.seed, &[8]);
        let service = Service::new(clock, plan.planted, (time.clone(), timeline), random);
        let wires = Wires::new(plan.seed, time, network, nanos(LONGEST_DELAY));
        Arc::new(Self { plan: plan.clone(), wires, service })
    }
}

impl Servers for AzureServers {
    fn open(self: Arc<Self>, _: Life) -> Opening {
        Box::pin(async move {
            loop {
                let config = Config::new("az://locks?emulator=http://n0:1");
                let config = config.unwrap_or_else(|error| unreachable!("{error}"));
                match polylock_azure::connect(config).await {
                    Ok(store) => return store,
                    Err(error) => assert!(error.is_temporary(), "{}", error.chain()),
                }
                SystemClock.sleep_until(SystemClock.now() + REOPEN).await;
            }
        })
    }

    fn connect(&self, process: Life, address: &str) -> Connecting {
        self.wires.connect(process, address, std::slice::from_ref(&self.service))
    }

    fn end_process(&self, process: usize) {
        self.wires.end_process(process);
    }

    fn stick(&self, process: usize, server: usize, until: u64) {
        self.wires.stick(process, server, until);
    }

    fn pause(&self, _: usize) {
        self.service.pause();
    }

    fn resume(&self, _: usize) {
        self.service.resume();
    }

    fn crash(&self, _: usize) {
        self.service.crash();
    }

    fn restart(&self, _: usize) {
        self.service.restart();
    }

    fn expires(&self, name: &LockName, token: FencingToken) -> Option<u64> {
        let ends_us = self.service.inspect(|blobs| {
            let is_it = |blob: &str, grant: &Grant| {
                lock_of(blob).as_ref() == Some(name) && grant.token == Some(token.get())
            };
            blobs.live().find(|(blob, _, grant)| is_it(blob, grant)).map(|(_, ends_us, _)| ends_us)
        });
        ends_us.map(|ends_us| self.service.clock.to_run(ends_us))
    }

    fn live(&self) -> Vec<LiveEntry> {
        self.service.inspect(|blobs| {
            let entry = |(blob, _, grant): (&str, i64, &Grant)| {
                // A lease without a token is one of token 0, which no client has.
                let (token, owner) = (Some(grant.token.unwrap_or(0)), grant.owner.clone());
                Some(LiveEntry { name: lock_of(blob)?, token, is_free_to_go: false, owner })
            };
            blobs.live().filter_map(entry).collect()
        })
    }

    fn violations(&self, events: &Events<'_>) -> Vec<Violation> {
        let grants = self.service.inspect(|blobs| blobs.grants.clone());
        let orphans = grants.iter().filter_map(|grant| self.orphan(grant, events));
        let breaks =
            check::unnoticed_breaks(&self.plan, events, LONGEST_AFTERMATH, |_| Some(LONGEST_UNNOTICED));
        orphans.chain(breaks).collect()
    }
}

impl AzureServers {
    /// Returns a violation if a process left a lease that none of its clients had, although nothing prevented it from a release.
    fn orphan(&self, grant: &Grant, events: &Events<'_>) -> Option<Violation> {
        let name = lock_of(&grant.blob)?;
        let (at, ends) = (self.service.clock.to_run(grant.at_us), self.service.clock.to_run(grant.ends_us));
        let window = (Duration::from_nanos(at), Duration::from_nanos(at) + LONGEST_UNHELD);
        let was_held = grant.token.is_some_and(|token| events.record.had_hold(&name, token));
        let is_able =
            |(process, life): Life| events.lives[process] == life && !self.plan.is_disturbed(process, window);
        // The process that has sent a late acquisition may have left its hold to others. Then it does not know of the release.
        let was_left = !grant.released_by.is_empty() && !grant.released_by.iter().copied().any(is_able);
        let process = grant.process.0;
        let is_orphan =
            ends > nanos(window.1) && !was_held && !grant.is_broken && is_able(grant.process) && !was_left;
        is_orphan.then(|| {
            let what = format!("orphan: no client has the lease of {name} of p{process}, or releases it");
            Violation::new(at, "orphan", what)
        })
    }
}

/// Returns the lock with this blob; `None` for a waiter marker or a notice. The only character of the names of a run that is escaped is the NUL
/// byte in those of a semaphore.
fn lock_of(blob: &str) -> Option<LockName> {
    let name = blob.strip_prefix(PREFIX)?.replace("_00", "\0");
    if name.contains('_') { None } else { LockName::from_store(name).ok() }
}
