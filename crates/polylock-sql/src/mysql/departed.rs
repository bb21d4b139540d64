//! Who has left a moment ago, in this process.
//!
//! A claim learns from the server whom it waits for; by the time it can say so to the hub, a release of the same process
//! may have rung already:
//! 1. the server answers a claim: A is in its way;
//! 2. A is released, and the hub rings for those behind A: nobody yet;
//! 3. the claim puts itself behind A in the hub, and would wait for the poller.
//!
//! So a release leaves its request here *before* it rings, and a claim looks here *after* it has put itself behind: one of
//! the two meets the other.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Mutex, PoisonError},
};

use polylock_core::RequestId;

/// So many are remembered: more than are released while the answer to one claim is on its way. What is forgotten is
/// still found by the poller.
const REMEMBERED: usize = 1024;

/// The last ones who left.
#[derive(Debug, Default)]
pub(super) struct Departed(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    order: VecDeque<RequestId>,
    known: HashSet<RequestId>,
}

impl Departed {
    pub(super) fn push(&self, left: RequestId) {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !recent.known.insert(left) {
            return;
        }
        recent.order.push_back(left);
        if recent.order.len() > REMEMBERED
            && let Some(oldest) = recent.order.pop_front()
        {
            recent.known.remove(&oldest);
        }
    }

    pub(super) fn contains(&self, request: RequestId) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).known.contains(&request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_known_and_the_memory_is_bounded() {
        let departed = Departed::default();
        let (first, last) = (RequestId::from_bytes([1; 16]), RequestId::from_bytes([2; 16]));
        departed.push(first);
        departed.push(first);
        assert!(departed.contains(first) && !departed.contains(last));
        for _ in 1..REMEMBERED {
            departed.push(RequestId::random());
        }
        assert!(departed.contains(first));
        departed.push(last);
        assert!(!departed.contains(first) && departed.contains(last));
        let recent = departed.0.lock().unwrap();
        assert_eq!((recent.order.len(), recent.known.len()), (REMEMBERED, REMEMBERED));
    }
}
