//! Deletes the nodes of locks that this session has created, when they are empty.
//!
//! The servers delete them, too, but not more than 10,000 a minute. A program that locks more names than that would fill their memory.
//! They also delete those whose creator has ended.
//!
//! A lock that is used again soon keeps its node, because a new one costs a transaction. A node that somebody else has created, with
//! rights of its own maybe, is left alone. The servers refuse to delete one that has got a child meanwhile:
//! 1. A deletes the node of a lock; B, which is about to create its own in it, gets `NoNode`, and makes the lock's node again.
//! 2. Nobody was in it, so the new sequences, which begin with 0, need not follow the old ones. What sessions know of the old sequences
//!    they know of requests that are gone; see [`directory`](crate::directory).
//! 3. Tokens are numbers of transactions, and go on growing.

use std::sync::{Arc, Weak};

use futures_util::{StreamExt, stream};
use polylock_core::{Clock, SystemClock};
use zookeeper_client::Error as Failure;

use crate::{directory::Directories, session::Session};

/// How many are deleted at a time, so that claims and releases do not wait behind all of them.
const AT_ONCE: usize = 16;

/// Runs until the session has ended.
pub(crate) async fn run(session: Weak<Session>, directories: Arc<Directories>) {
    loop {
        directories.some_created.notified().await;
        loop {
            let Some(session) = session.upgrade().filter(|session| !session.is_over()) else { return };
            let (unused, next) = directories.take_unused(SystemClock.now());
            let looks = stream::iter(unused).map(async |(path, look)| {
                if !delete_if_empty(&session, &path).await {
                    directories.look_again(path, look);
                }
            });
            looks.buffer_unordered(AT_ONCE).for_each(|()| std::future::ready(())).await;
            drop(session);
            let Some(next) = next else { break };
            SystemClock.sleep_until(next).await;
        }
    }
}

/// Deletes a lock's node if nobody is in it. Returns whether it need not be looked at again.
async fn delete_if_empty(session: &Session, path: &str) -> bool {
    // A deletion that is refused is a transaction, too; a look is not.
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
