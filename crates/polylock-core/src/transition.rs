//! A transitional store: acquires every lock in an old and in a new store, so that the processes of a fleet can move from one to the
//! other one by one.
//!
//! While one half of a fleet uses the old store and the other half the new one, nothing excludes them from each other. With a step in
//! between, every two processes have a store in common:
//!
//! | processes | hold a lock in | exclude each other with those of the |
//! |---|---|---|
//! | 1. old | the old store | same step, and step 2 |
//! | 2. both | the old store, then the new one | same step, and steps 1 and 3 |
//! | 3. new | the new store | same step, and step 2 |
//!
//! Processes of steps 1 and 3 must never run together. Each step may last for any time, and may be reverted.
//!
//! # Guarantees
//!
//! * **Exclusion**: a grant is returned only while both stores hold the lock for the request. Its lease is the shorter of the two.
//! * **Tokens**: each grant has a greater token than every earlier grant, by whichever of two adjacent steps. The token is the greater of
//!   those of the two stores, and the store with the smaller one is raised to it ([`RaiseToken`]) before the grant is returned. A lock that no
//!   process of step 2 acquires keeps separate tokens in the two stores, so step 3 may begin with smaller ones than step 1 had.
//! * **Order**: first come, first served among the processes of step 2. Beside those of step 1, the order is that of the old store. Beside
//!   those of step 3, a request takes its place in the queue of the new store once the old one has granted it the lock.
//! * **Records of jobs** ([`Locks::once`](crate::Locks::once)) are in both stores, if both keep records. A job that processes of step 2 call at
//!   least once, whether it was due or not, does not run a second time in its period in step 3, nor in step 1 after a return.
//! * **Capabilities** are the weaker ones of the two stores. If one of the two is unavailable, so is the transitional store. A request that
//!   the new store does not answer keeps the lock in the old store until its acquisition gives up, or until its lease there ends.
//!
//! All processes of step 2 must name the two stores in the same order. Otherwise one may hold the lock in the one store and wait for it in
//! the other, while another process does the reverse. A request that seems to be in this situation fails with a temporary error, which is
//! retried like an outage and names the cause.
//!
//! The two must not be one store: [`ensure_distinct`] checks that, and `both:OLD;NEW` calls it.
//!
//! # Races
//!
//! **A token between two grants.** The raise comes before the return of the grant, and while both stores hold the lock:
//! 1. P, with both stores, has the tokens 5 of the old store and 9 of the new one. It returns 9.
//! 2. P releases, and Q, with the old store alone, has 6: a resource that has seen 9 refuses it. So P raises the old store to 9 in step 1.
//! 3. P is killed between the raise and the return: tokens have a gap, which is harmless.
//! 4. The message of a raise arrives late: it never lowers a token.
//!
//! **Two equal tokens**, in modes that do not exclude each other:
//! 1. P has 5 of the old store and 9 of the new one. Other requests have drawn 6, 7 and 8 of the old store.
//! 2. Q, which has drawn 4 of the new store before, draws 9 of the old one.
//! 3. P raises the old store, and Q the new one. Both would return 9. But the raise of P returns that 9 may have been drawn before: so P
//!    takes the next number, and keeps it only if a raise of both stores to it returns that it was not drawn.
//!
//! At least one of two requests in such modes makes this check if those requests do it whose mode does not exclude itself.
//!
//! **An entry in the new store alone.**
//! 1. P has the lock in the old store, and waits in the new one. It is frozen until its lease in the old store has ended.
//! 2. Q acquires the lock in the old store, and waits behind P in the new one.
//! 3. P claims again, and waits behind Q in the old store. If it kept its entry in the new one alive, each would wait for the other.
//!    So a request that waits in the old store is kept alive in that one alone, and its entry in the new one expires.
//!
//! **A break by a token of one store alone.**
//! 1. P holds the lock in the new store alone, with the token 5, and is shown with it. It releases the lock.
//! 2. Q draws 5 of the old store, and waits in the new one.
//! 3. A break of 5 through both stores finds the hold of Q in the old one. Since Q waits in the new one, it is no target.
//! 4. While Q has not yet reached the new store, or has just left it, it looks like a process of step 1, and the break ends its request.
//!
//! **A crash at any point** leaves at most entries that expire: a grant of the old store alone, of both, or a queue entry. A release goes to
//! the new store first, then to the old one, so that the next request, which comes through the old store, finds the new one free.
//!
//! **A late reply to a keep-alive** from before the grant may report a request that had the lock in the old store alone as lost. Core
//! ignores what was determined before the grant, and the waiter claims again.
//!
//! ```
//! use polylock_core::{Locks, memory, transition};
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let old = Locks::new(memory::named("old"));
//! let both = Locks::new(transition::both(memory::named("old"), memory::named("new"))?);
//! let new = Locks::new(memory::named("new"));
//!
//! let guard = both.lock("orders/42").acquire().await?;
//! assert!(old.lock("orders/42").try_acquire().await?.is_none());
//! assert!(new.lock("orders/42").try_acquire().await?.is_none());
//! # Ok::<(), polylock_core::Error>(()) }).unwrap();
//! ```

mod backend;
mod capabilities;
mod inspect;
mod order;
mod park;
mod records;
mod same_store;
mod tokens;

use std::sync::Arc;

#[cfg(doc)]
use crate::RaiseToken;
use crate::{Error, HoldAlerts, Result, Store};

use self::{
    backend::Both, capabilities::weaker, inspect::InspectBoth, park::ParkBoth, records::RecordBoth,
    tokens::Tokens,
};

pub use self::{capabilities::NAME, same_store::ensure_distinct};

/// Returns a store that acquires every lock in `old`, then in `new`.
///
/// # Errors
/// [`Error::Unsupported`] if the tokens of one of the stores can't be raised; [`Error::InvalidTtl`] if they have no TTL in common.
pub fn both(old: Store, new: Store) -> Result<Store> {
    let capabilities = weaker(old.backend.capabilities(), new.backend.capabilities())?;
    let raise = |store: &Store| {
        store.raise.clone().ok_or(Error::Unsupported {
            backend: store.backend.capabilities().backend,
            capability: "tokens that continue after those of another store, which a transition needs",
        })
    };
    let tokens = Tokens { old: raise(&old)?, new: raise(&new)? };
    let alerts = forwarded(&[&old, &new]);
    let inspect = match (&old.inspect, &new.inspect) {
        (Some(old), Some(new)) => {
            Some(Arc::new(InspectBoth { old: old.clone(), new: new.clone() }) as Arc<dyn crate::Inspect>)
        }
        _ => None,
    };
    let park = ParkBoth::of(&old, &new);
    let records = RecordBoth::of(&old, &new, tokens.clone());
    let mut store = Store::new(Arc::new(Both::new(old, new, tokens, capabilities)));
    (store.inspect, store.alerts, store.park, store.records) = (inspect, alerts, park, records);
    Ok(store)
}

/// Returns the alerts that pass on those of `stores`, if any of these can push.
fn forwarded(stores: &[&Store]) -> Option<Arc<HoldAlerts>> {
    let alerts = Arc::new(HoldAlerts::default());
    let mut can_push = false;
    for source in stores.iter().filter_map(|store| store.alerts.as_ref()) {
        can_push = true;
        let to = Arc::downgrade(&alerts);
        source.listen(move |name| to.upgrade().inspect(|alerts| alerts.check(name)).is_some());
    }
    can_push.then_some(alerts)
}

#[cfg(test)]
mod tests;
