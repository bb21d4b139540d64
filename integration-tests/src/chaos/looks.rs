//! The entries that the store shows while a run lasts.

use std::collections::HashSet;

use polylock::Locks;
use polylock_core::{FencingToken, LockName, OwnerId};

use crate::clock::now;

/// A hold that the store has shown.
#[derive(Debug, Clone)]
pub struct Shown {
    /// The name of the lock.
    pub lock: String,
    /// The token.
    pub token: u64,
    /// The owner, which ends with the process id.
    pub owner: String,
    /// The time of the first look at the store that has shown it, and of the last one. All looks in between have shown it, too.
    pub span: (u64, u64),
}

/// An entry that the store has shown: a hold, or a request in the queue.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The name of the lock.
    pub lock: String,
    /// The owner. That of a request in a run is its own.
    pub owner: String,
    /// The time of the first look that has shown it.
    pub at: u64,
    /// A time from which two looks have not shown it.
    pub absent: u64,
}

/// The looks at the store so far.
#[derive(Debug, Default)]
pub struct Looks {
    /// The holds that were shown.
    pub shown: Vec<Shown>,
    /// The entries that were shown.
    pub entries: Vec<Entry>,
    /// The locks and owners of these.
    known: HashSet<(String, String)>,
    /// The begins of the last two looks that have succeeded; zero before them.
    last: [u64; 2],
}

impl Looks {
    /// Looks at the store.
    ///
    /// # Errors
    /// The errors of a store that can't be listed now: the next look may succeed.
    pub async fn look(admin: &Locks) -> polylock::Result<impl FnOnce(&mut Self)> {
        let from = now().as_nanos();
        let locks = admin.list("").await?;
        let at = now().as_nanos();
        Ok(move |looks: &mut Self| {
            // A client waits at the turnstile of a semaphore with a hold of its own.
            for status in locks.into_iter().filter(|status| !status.name.is_turnstile()) {
                for holder in &status.holders {
                    looks.add_entry(&status.name, &holder.owner, at);
                    if let Some(token) = holder.token {
                        looks.add_hold(&status.name, &holder.owner, token, (from, at));
                    }
                }
                status.waiters.iter().for_each(|waiter| looks.add_entry(&status.name, &waiter.owner, at));
            }
            looks.last = [looks.last[1], from];
        })
    }

    fn add_entry(&mut self, name: &LockName, owner: &OwnerId, at: u64) {
        let key = (name.to_string(), owner.to_string());
        if self.known.insert(key.clone()) {
            let (lock, owner) = key;
            self.entries.push(Entry { lock, owner, at, absent: self.last[0] });
        }
    }

    fn add_hold(&mut self, name: &LockName, owner: &OwnerId, token: FencingToken, (from, at): (u64, u64)) {
        let (lock, token) = (name.to_string(), token.get());
        let last = self.last[1];
        match self.shown.iter_mut().rev().find(|it| it.token == token && it.lock == lock) {
            Some(known) if known.span.1 >= last => known.span.1 = from,
            // After a look without it: in Azure, while another client has the lease, and has not replaced the last record yet.
            _ => self.shown.push(Shown { lock, token, owner: owner.to_string(), span: (at, at) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_that_a_look_has_not_shown_is_another_one() {
        let (name, owner) = (LockName::new("n").unwrap(), OwnerId::new("o").unwrap());
        let mut looks = Looks::default();
        let shows = [(1, true), (3, true), (5, true), (7, false), (9, true)];
        for (from, is_shown) in shows {
            if is_shown {
                looks.add_hold(&name, &owner, FencingToken::new(7).unwrap(), (from, from + 1));
            }
            looks.last = [looks.last[1], from];
        }
        assert_eq!(looks.shown.iter().map(|shown| shown.span).collect::<Vec<_>>(), [(2, 5), (10, 10)]);
    }
}
