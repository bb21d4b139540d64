//! Inspecting and breaking locks in both stores.
//!
//! The stores are read one after the other, so a status may show a request in two states while its lock changes hands. A request is
//! recognised by its owner, mode and label.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;

use crate::{
    BreakOrder, ConfigError, Entry, FencingToken, Inspect, LockName, LockStatus, Result, bug::Bug,
    process::has_bug,
};

#[derive(Debug)]
pub(super) struct InspectBoth {
    pub(super) old: Arc<dyn Inspect>,
    pub(super) new: Arc<dyn Inspect>,
}

#[async_trait]
impl Inspect for InspectBoth {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        let (old, new) = tokio::join!(self.old.inspect(name), self.new.inspect(name));
        Ok(merged(old?, new?))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        let (old, new) = tokio::join!(self.old.list(prefix), self.new.list(prefix));
        let by_name = |list: Vec<LockStatus>| list.into_iter().map(|status| (status.name.clone(), status));
        let mut locks: BTreeMap<LockName, LockStatus> = by_name(old?).collect();
        for (name, new) in by_name(new?) {
            let old = locks.remove(&name).unwrap_or_else(|| LockStatus::new(name.clone(), vec![], vec![]));
            locks.insert(name, merged(old, new));
        }
        Ok(locks.into_values().collect())
    }

    fn list_commands(&self, locks: usize) -> usize {
        self.old.list_commands(locks).saturating_add(self.new.list_commands(locks))
    }

    fn lists_semaphores(&self) -> bool {
        self.old.lists_semaphores() && self.new.lists_semaphores()
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let (old, new) = tokio::join!(self.old.inspect(name), self.new.inspect(name));
        let (in_old, in_new) = targets(order, old?, new?)?;
        // A break in one store alone ends a hold in both: its holder releases the other one. Neither failure hides the other break.
        let (old, new) =
            tokio::join!(broken(&self.old, name, order, &in_old), broken(&self.new, name, order, &in_new));
        let status = |holders| LockStatus::new(name.clone(), holders, vec![]);
        Ok(merged(status(old?), status(new?)).holders)
    }
}

/// Breaks the targets of `order` in one store, and returns their entries as the break names them.
async fn broken(
    store: &Arc<dyn Inspect>,
    name: &LockName,
    order: &BreakOrder,
    targets: &[Target],
) -> Result<Vec<Entry>> {
    if targets.is_empty() {
        return Ok(Vec::new());
    }
    let own = targets.iter().map(|target| target.own).collect();
    let mut broken = store.break_lock(name, &BreakOrder { targets: own, ..order.clone() }).await?;
    for holder in &mut broken {
        let target = targets.iter().find(|target| target.own == holder.token);
        holder.token = target.map_or(holder.token, |target| target.shown);
    }
    Ok(broken)
}

/// The targets of a break in one store.
type Targets = Vec<Target>;

/// A hold that is to be broken in one store.
#[derive(Debug)]
struct Target {
    /// Its token in this store.
    own: Option<FencingToken>,
    /// The token by which the break names it.
    shown: Option<FencingToken>,
}

/// Returns the targets of `order` in the old store, and in the new one. The token of a hold is the greater one of the two, as [`merged`] shows
/// it.
///
/// 1. P holds the lock in the new store alone, with token 5, and releases it.
/// 2. Q draws 5 of the old store, and waits in the new one behind R.
/// 3. A break names 5, which someone has seen while P had the lock. Q was shown as a waiter, without a token, so it is no target.
///
/// # Errors
/// If a target is the token of several holds: the numbers of the two stores have nothing to do with each other.
fn targets(order: &BreakOrder, old: LockStatus, new: LockStatus) -> Result<(Targets, Targets)> {
    let (mut in_old, mut in_new, mut shown) = (Vec::new(), Vec::new(), Vec::new());
    let (olds, news) = (old.holders.clone(), new.holders.clone());
    let mut old = old.holders;
    for entry in new.holders {
        let is_certain = count_same(&olds, &entry) == 1 && count_same(&news, &entry) == 1;
        let same = take_same(&mut old, &entry);
        let other = same.as_ref().and_then(|same| same.token);
        if !order.is_target(entry.token.max(other)) {
            continue;
        }
        let token = entry.token.max(other);
        shown.push(token);
        // Of several holds of an owner with one label it is not known which belong together. The break of one in either store ends it: its
        // holder releases the other one.
        if is_certain || entry.token > other {
            in_new.push(Target { own: entry.token, shown: token });
        }
        if is_certain || entry.token <= other {
            in_old.extend(same.map(|same| Target { own: same.token, shown: token }));
        }
    }
    let waits = |entry: &Entry| count_same(&old, entry) <= count_same(&new.waiters, entry);
    let alone = old.iter().filter(|entry| has_bug(Bug::BrokenWaiter) || !waits(entry));
    for token in alone.map(|entry| entry.token).filter(|token| order.is_target(*token)) {
        shown.push(token);
        in_old.push(Target { own: token, shown: token });
    }
    // Core names the token of each of them to break all holds.
    let count =
        |tokens: &[Option<FencingToken>], token| tokens.iter().filter(|other| **other == token).count();
    match shown.iter().find(|token| count(&shown, **token) > count(&order.targets, **token)) {
        Some(Some(token)) => {
            let problem = format!(
                "{token} is the token of two holds, each in one of the stores: break the lock when one of them has ended"
            );
            Err(ConfigError::new("token", problem).into())
        }
        _ => Ok((in_old, in_new)),
    }
}

/// Returns the number of holds that can't be told from this one.
fn count_same(holders: &[Entry], entry: &Entry) -> usize {
    holders.iter().filter(|other| is_same(other, entry)).count()
}

fn is_same(one: &Entry, other: &Entry) -> bool {
    (&one.owner, one.mode, &one.label) == (&other.owner, other.mode, &other.label)
}

/// Removes the entry of the same request from the holders of the old store, and returns it.
fn take_same(old: &mut Vec<Entry>, entry: &Entry) -> Option<Entry> {
    let at = old.iter().position(|other| is_same(other, entry))?;
    Some(old.remove(at))
}

/// Returns the status of a lock with these two states. A request that holds the lock in the old store and waits in the new one is a waiter,
/// ahead of those that wait in the old store.
fn merged(mut old: LockStatus, new: LockStatus) -> LockStatus {
    let mut holders: Vec<Entry> = Vec::new();
    for mut entry in new.holders {
        if let Some(same) = take_same(&mut old.holders, &entry) {
            entry.token = entry.token.max(same.token);
            entry.expires_in = entry.expires_in.min(same.expires_in);
            entry.broken = entry.broken.or(same.broken);
        }
        holders.push(entry);
    }
    let mut waiters: Vec<Entry> = Vec::new();
    for mut entry in new.waiters {
        if let Some(same) = take_same(&mut old.holders, &entry) {
            entry.age = entry.age.max(same.age);
        }
        waiters.push(entry);
    }
    holders.append(&mut old.holders);
    holders.sort_by_key(|holder| holder.token);
    waiters.append(&mut old.waiters);
    let last = [old.last_grant, new.last_grant].into_iter().flatten().max_by_key(|grant| grant.token);
    let last = last.filter(|_| holders.is_empty());
    LockStatus::new(old.name, holders, waiters).last_grant(last)
}
