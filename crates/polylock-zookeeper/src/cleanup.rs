//! Deletes the empty nodes of locks that this session has created.
//!
//! The servers delete them, too, but not more than 10,000 a minute: the nodes of a program that locks more names than that would fill the
//! servers' memory. The servers also delete the nodes of sessions that have ended.
//!
//! A lock that is soon used again keeps its node, because a new one costs a transaction. A node that this session did not create, perhaps
//! with its own ACL, is not deleted. The servers refuse to delete a node that has got a child meanwhile:
//! 1. A deletes the node of a lock; B, which is about to create its own node in it, gets `NoNode`, and creates the lock's node again.
//! 2. The deleted node was empty, so the new sequences, which start at 0, need not follow the old ones. The old sequences that sessions
//!    know belong to requests that are gone; see [`directory`](crate::directory).
//! 3. Tokens are transaction ids, and continue to grow.

use std::sync::{Arc, Weak};

use futures_util::{StreamExt, stream};
use polylock_core::{Clock, SystemClock};
use zookeeper_client::Error as Failure;

use crate::{directory::Directories, session::Session};

/// The number of concurrent deletions, so that claims and releases do not wait behind all of them.
const MAX_CONCURRENT: usize = 16;

/// Runs until the session has ended.
pub(crate) async fn run(session: Weak<Session>, directories: Arc<Directories>) {
    loop {
        directories.first_created.notified().await;
        loop {
            let Some(session) = session.upgrade().filter(|session| !session.has_ended()) else { return };
            let (unused, next) = directories.take_unused(SystemClock.now());
            let checks = stream::iter(unused).map(async |(path, check)| {
                if !delete_if_empty(&session, &path).await {
                    directories.check_again(path, check);
                }
            });
            checks.buffer_unordered(MAX_CONCURRENT).for_each(|()| std::future::ready(())).await;
            drop(session);
            let Some(next) = next else { break };
            SystemClock.sleep_until(next).await;
        }
    }
}

/// Deletes a lock's node if it is empty. Returns true if the node needs no further check.
async fn delete_if_empty(session: &Session, path: &str) -> bool {
    // A read is cheaper than a deletion that fails, which is a transaction.
    let is_in_use = match session.client.check_stat(path).await {
        Ok(stat) => stat.is_some_and(|stat| stat.num_children > 0),
        Err(_) => true,
    };
    if is_in_use {
        return false;
    }
    let Err(error) = session.client.delete(path, None).await else { return true };
    if !matches!(error, Failure::NoNode | Failure::NotEmpty) {
        let error = &error as &dyn std::error::Error;
        tracing::debug!(node = path, error, "an empty node of a lock can't be deleted");
    }
    error == Failure::NoNode
}
