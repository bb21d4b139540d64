//! The breaks that processes request from the transitional store.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use polylock_core::{BreakOrder, Entry, Inspect, LockName, LockStatus, Result, Store, sync::lock};

use crate::simulation::{server::Server, time::Time, violation::Violation};

/// The breaks of a run, and the broken promises among them.
#[derive(Debug)]
pub struct Breaks {
    old: Arc<Server>,
    new: Arc<Server>,
    time: Arc<Time>,
    found: Mutex<Vec<Violation>>,
}

impl Breaks {
    /// Returns the breaks of a run with these servers.
    #[must_use]
    pub fn new(old: Arc<Server>, new: Arc<Server>, time: Arc<Time>) -> Arc<Self> {
        Arc::new(Self { old, new, time, found: Mutex::default() })
    }

    /// Returns the same store, whose breaks are checked.
    pub fn checking(self: &Arc<Self>, store: Store) -> Store {
        let inspect = store.inspect.map(|inspect| Arc::new(Checking { inspect, breaks: self.clone() }) as _);
        Store { inspect, ..store }
    }

    /// Returns the broken promises.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        lock(&self.found).clone()
    }

    /// Returns the owners of the requests that hold `name` in the old store and wait for it in the new one.
    fn waiting(&self, name: &LockName) -> BTreeSet<String> {
        let owners = |server: &Server, holds: bool| -> BTreeSet<String> {
            let entries = server.requests().into_iter().map(|(_, entry)| entry);
            let entries = entries.filter(|entry| entry.name == *name && entry.token.is_some() == holds);
            entries.filter_map(|entry| entry.owner).collect()
        };
        &owners(&self.old, true) & &owners(&self.new, false)
    }
}

/// The transitional store of one process.
#[derive(Debug)]
struct Checking {
    inspect: Arc<dyn Inspect>,
    breaks: Arc<Breaks>,
}

#[async_trait]
impl Inspect for Checking {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        self.inspect.inspect(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        self.inspect.list(prefix).await
    }

    fn list_commands(&self, locks: usize) -> usize {
        self.inspect.list_commands(locks)
    }

    fn lists_semaphores(&self) -> bool {
        self.inspect.lists_semaphores()
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let before = self.breaks.waiting(name);
        let broken = self.inspect.break_lock(name, order).await?;
        // One that has waited all the time was shown as a waiter, whenever the break has looked at it.
        let waiting = &before & &self.breaks.waiting(name);
        for holder in broken.iter().filter(|holder| waiting.contains(holder.owner.as_str())) {
            let what = format!("broken waiter: a break of {name} has broken {}, which waits", holder.owner);
            lock(&self.breaks.found).push(Violation::new(self.breaks.time.now(), "break", what));
        }
        Ok(broken)
    }
}
