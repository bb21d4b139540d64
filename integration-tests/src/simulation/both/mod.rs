//! Two servers with queues, the old and the new store, and a fleet that moves from one to the other as `docs/migration.md` describes it.
//!
//! | module | part |
//! |---|---|
//! | [`fleet`], [`step`] | the processes, and the steps in which they are |
//! | [`grants`] | the holds that processes have in both stores |
//! | [`breaks`] | the breaks in both stores |
//!
//! A process in the middle step uses the real transitional store. What the two servers know of one of its requests is shown to the checks as
//! one entry: a request that holds the lock in the old store alone still waits.

pub mod breaks;
pub mod fleet;
pub mod grants;
pub mod step;

use std::{collections::BTreeMap, sync::Arc};

use polylock_core::{FencingToken, LockName, Request, RequestId, transition};

use self::{breaks::Breaks, fleet::Fleet, grants::Grants, step::Step};
use super::{
    live_entry::LiveEntry,
    network::Network,
    plan::Plan,
    queue_server::GrantRecord,
    server::Server,
    servers::{Events, Life, Opening, Servers},
    time::Time,
    timeline::Timeline,
    violation::Violation,
};

/// The servers of a run.
#[derive(Debug)]
pub struct BothServers {
    old: Arc<Server>,
    new: Arc<Server>,
    fleet: Arc<Fleet>,
    grants: Arc<Grants>,
    breaks: Arc<Breaks>,
}

/// What a server knows of a request.
type Known = (Arc<Request>, LiveEntry);

impl BothServers {
    /// Creates the servers of `plan`, which are up.
    #[must_use]
    pub fn new(plan: &Plan, fleet: Arc<Fleet>, parts: (Arc<Time>, Arc<Network>, Arc<Timeline>)) -> Arc<Self> {
        let old = Server::new(plan, (0, "old"), parts.clone());
        let (time, ..) = &parts;
        let time = time.clone();
        let new = Server::new(plan, (1, "new"), parts);
        let breaks = Breaks::new(old.clone(), new.clone(), time);
        Arc::new(Self { old, new, grants: fleet.grants.clone(), fleet, breaks })
    }

    fn server(&self, number: usize) -> &Arc<Server> {
        if number == 0 { &self.old } else { &self.new }
    }

    /// Returns the state of a request of both stores that the old server knows, with what the new one knows of it.
    fn together(&self, (request, in_old): Known, in_new: Option<LiveEntry>, others: &[Known]) -> LiveEntry {
        if in_old.token.is_none() {
            return in_old;
        }
        let told = self.grants.token(request.id);
        match in_new {
            Some(LiveEntry { token: None, is_free_to_go, .. }) => {
                LiveEntry { token: None, is_free_to_go, ..in_old }
            }
            Some(in_new) => LiveEntry { token: told.or(in_old.token.max(in_new.token)), ..in_old },
            // Its hold in the new store has ended, or it has not claimed that one yet.
            None => {
                let is_in_the_way = |(other, entry): &Known| {
                    entry.name == in_old.name && other.mode.conflicts_with(request.mode)
                };
                let is_free_to_go = told.is_none() && !others.iter().any(is_in_the_way);
                LiveEntry { token: told, is_free_to_go, ..in_old }
            }
        }
    }
}

impl Servers for BothServers {
    fn open(self: Arc<Self>, life: Life) -> Opening {
        Box::pin(async move {
            let (old, new) = (self.old.clone().open(life), self.new.clone().open(life));
            match self.fleet.place(life.0).step {
                Some(Step::New) => new.await,
                Some(Step::Both) => {
                    let both = transition::both(old.await, new.await);
                    let both = both.unwrap_or_else(|error| unreachable!("{error}"));
                    self.breaks.checking(self.grants.recording(both))
                }
                Some(Step::Old) | None => old.await,
            }
        })
    }

    fn end_process(&self, process: usize) {
        self.old.end_process(process);
        self.new.end_process(process);
    }

    fn refuse(&self, server: usize, until: u64) {
        self.server(server).refuse(0, until);
    }

    fn pause(&self, server: usize) {
        self.server(server).pause(0);
    }

    fn resume(&self, server: usize) {
        self.server(server).resume(0);
    }

    fn crash(&self, server: usize) {
        self.server(server).crash(0);
    }

    fn restart(&self, server: usize) {
        self.server(server).restart(0);
    }

    fn expires(&self, name: &LockName, token: FencingToken) -> Option<u64> {
        if let Some(request) = self.grants.request(name, token.get()) {
            let [old, new] =
                [&self.old, &self.new].map(|server| server.expires_of(name, |other, _| other == request));
            return Some(old?.min(new?));
        }
        // A hold of a process with one store, whose token may be that of another hold in the other store.
        let is_it = |request, other| other == token.get() && !self.grants.contains(request);
        self.old.expires_of(name, is_it).or_else(|| self.new.expires_of(name, is_it))
    }

    fn live(&self) -> Vec<LiveEntry> {
        let new = self.new.requests();
        let key = |(request, entry): &Known| (entry.name.clone(), request.id);
        let mut in_new: BTreeMap<(LockName, RequestId), LiveEntry> =
            new.iter().map(|known| (key(known), known.1.clone())).collect();
        let mut live = Vec::new();
        for known in self.old.requests() {
            live.push(if self.grants.contains(known.0.id) {
                let other = in_new.remove(&key(&known));
                self.together(known, other, &new)
            } else {
                known.1
            });
        }
        // A request that has lost the lock in the old store has lost it, and waits at best.
        let alone = |((_, request), entry)| match self.grants.contains(request) {
            true => LiveEntry { token: self.grants.token(request), is_free_to_go: false, ..entry },
            false => entry,
        };
        live.extend(in_new.into_iter().map(alone));
        live
    }

    fn violations(&self, events: &Events<'_>) -> Vec<Violation> {
        let needs_no_release = |GrantRecord { request, token, .. }: &GrantRecord| {
            let (name, owner) = (&request.name, request.owner.as_str());
            if !self.grants.contains(request.id) {
                return events.record.needs_no_release(name, *token, owner);
            }
            // The client was told another token.
            let attempt = events.record.attempts.get(owner);
            let has_held =
                attempt.is_some_and(|it| it.leaves_lost || it.lock == name.as_str() && !it.tokens.is_empty());
            has_held || name.is_turnstile()
        };
        let servers = [&self.old, &self.new].into_iter();
        let of_servers = servers.flat_map(|server| server.violations_with(events, needs_no_release));
        of_servers.chain(self.breaks.violations()).collect()
    }
}
