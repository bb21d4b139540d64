//! Candidates of an election. They wait for the store without a limit, so nothing but the end of the run ends them.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use polylock::Mode;
use polylock_core::sync::lock;

use super::{Client, LONG};
use crate::{clock::now, recipe::Held};

/// The number of terms for which a candidate campaigns with one owner.
const TERMS: usize = 3;

impl Client {
    /// Campaigns for some terms, and leads in each for a while.
    pub(super) async fn campaign(&mut self) {
        let (process, owner) = (self.process.clone(), self.new_owner());
        let [name, ..] = LONG;
        let mut election = process.locks.election(name).owner(&owner);
        let (short, long) = process.work.leases;
        if short != long {
            // As for the other holders of these locks: the next one waits for the lease of a killed leader.
            election = election.ttl(Duration::from_millis(short));
        }
        for _ in 0..TERMS {
            let attempt = process.recorder.invoke(name, &self.name, Mode::Exclusive);
            let entry = (name.to_owned(), self.name.clone(), now().as_nanos());
            lock(&process.waiting).insert(entry.clone());
            let outcome = election.campaign().await;
            lock(&process.waiting).remove(&entry);
            match outcome {
                Ok(guard) => {
                    let (lasts, end) = self.long_hold();
                    self.held(Held::Lock(guard), attempt, lasts, end).await;
                }
                Err(error) => process.files.error(&self.name, &error),
            }
            if process.stops.load(SeqCst) {
                break;
            }
        }
        self.ended(&owner);
    }
}
