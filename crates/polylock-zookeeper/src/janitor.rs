//! Deletes the empty nodes of locks that this session has left.
//!
//! The servers delete them, too, but not more than 10,000 a minute. A program that locks more names than that would fill their memory.
//!
//! A lock that is used again soon keeps its node, because a new one costs a transaction. Only an empty container is deleted, and the
//! servers refuse to delete one that has got a child meanwhile:
//! 1. A deletes the node of a lock; B, which is about to create its own in it, gets `NoNode`, and makes the lock's node again.
//! 2. Nobody was in it, so the new sequences, which begin with 0, need not follow the old ones. What sessions know of the old sequences
//!    they know of requests that are gone; see [`directory`](crate::directory).
//! 3. Tokens are numbers of transactions, and go on growing.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use polylock_core::{Clock, SystemClock};
use zookeeper_client::Error as Failure;

use crate::{
    directory::Directories,
    error::{Outcome, outcome},
    session::Session,
};

/// For how long a lock must have been unused.
const UNUSED: Duration = Duration::from_secs(5);

/// How often it looks at the most.
const LOOK: Duration = Duration::from_millis(200);

/// How many are deleted at a time, so that claims and releases do not wait behind all of them.
const AT_ONCE: usize = 16;

/// What the servers say is the owner of a container.
const CONTAINER: i64 = i64::MIN;

/// Runs until the session has ended.
pub(crate) async fn run(session: Weak<Session>, directories: Arc<Directories>) {
    loop {
        directories.some_left.notified().await;
        loop {
            let Some(session) = session.upgrade().filter(|session| !session.is_over()) else { return };
            let (left, next) = directories.take_left(UNUSED);
            let deletions = stream::iter(left).map(|path| delete_if_empty(&session, path));
            deletions.buffer_unordered(AT_ONCE).for_each(|()| std::future::ready(())).await;
            drop(session);
            let Some(next) = next else { break };
            SystemClock.sleep_until((next + UNUSED).max(SystemClock.now() + LOOK)).await;
        }
    }
}

/// Deletes a lock's node if nobody is in it.
async fn delete_if_empty(session: &Session, path: String) {
    // A refused deletion is a transaction, too; a look is not.
    let is_empty = match session.client.check_stat(&path).await {
        Ok(stat) => stat.is_some_and(|stat| stat.num_children == 0 && stat.ephemeral_owner == CONTAINER),
        Err(_) => return,
    };
    if !is_empty {
        return;
    }
    match session.client.delete(&path, None).await {
        Ok(()) | Err(Failure::NotEmpty | Failure::NoNode) => {}
        Err(error) if outcome(&error) != Outcome::Refused => {}
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::debug!(node = path, error, "an empty node of a lock can't be deleted: the servers will");
        }
    }
}
