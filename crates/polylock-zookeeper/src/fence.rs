//! Writes that refuse to be late, for data of yours in the same ensemble: the servers look at the lock's node in the very
//! transaction of the write.
//!
//! A lease can't stop a holder that was paused between its last look at the lock and the arrival of its write. ZooKeeper
//! can: **a write is applied only if the node of this very grant is still there in that transaction**, at its place in the
//! one order of all transactions of the ensemble. That is more than the compare of tokens that other resources do: a write is
//! refused from the moment on at which the lock is gone, not only after a later holder has written; and it needs no clock, no
//! token in your data, and nothing of other writers but that they do the same.
//!
//! ```no_run
//! use polylock_core::Guard;
//! use polylock_zookeeper::{fence::{self, Fence}, zookeeper_client::{Acls, Client, CreateMode}};
//!
//! // `client` is yours, with a session of its own; the store's URL is zookeeper://zk1,zk2,zk3/app/locks.
//! async fn pay(client: &Client, guard: &Guard) -> fence::Result<()> {
//!     let fence = Fence::of(client, "/app/locks", guard).await?;
//!     fence
//!         .write(|write| {
//!             write.add_set_data("/orders/42", b"paid", None)?;
//!             write.add_create("/payments/42", b"", &CreateMode::Persistent.with_acls(Acls::anyone_all()))
//!         })
//!         .await?;
//!     Ok(())
//! }
//! ```
//!
//! # Why nothing gets past it
//!
//! 1. P holds the lock, sends a write, and stalls, or its bytes do. Its lease runs out.
//! 2. The servers end P's session, or P's node is deleted in another way: a transaction. From here on the check fails.
//! 3. Only then is Q's node the first, and Q has the lock. Q reads what P left behind, and writes.
//! 4. P's write arrives, or P sends another: the node that it names is gone, and nobody makes one of that name again. It is
//!    refused, and what was in it with it.
//!
//! So P's write is either before the end of P's hold or nowhere. [`Fence::of`] also brings Q's client up to date, so that step 3
//! reads what P wrote: servers may lag, and yours need not be the one that told Q.
//!
//! # What to see to
//!
//! * Every writer must go through it. A plain `set_data` is not stopped.
//! * What is not in this ensemble can't be in the transaction: send [the token](Guard::fencing_token) along, and let the other
//!   side compare it.
//! * A write that was not answered may have been made. The same again is safe if the write is: give the version that was read,
//!   and it is made once at the most.
//! * The client needs the right to read the nodes of locks. If the store has a user, let the client have the same
//!   (`Connector::with_auth`, or [`Client::auth`]), or set `polylock.access=open`.

use std::fmt;

use futures_util::future::{join, try_join_all};
use polylock_core::{ConfigError, FencingToken, Guard, LockName, queue};
use zookeeper_client::{CheckWriteError, CheckWriter, Client, Error as Failure, MultiWriteResult};

use crate::{
    config,
    error::{Outcome, outcome},
    nodes::{self, NodeData},
    session::none_if_missing,
};

/// A result with this module's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Writes of the holder of one lock to its own data in the same ensemble, refused once the lock is gone. See the
/// [module](self).
///
/// It borrows nothing, and does not keep the lock. It is of one grant: for the next one, make another.
#[derive(Clone)]
pub struct Fence {
    client: Client,
    path: String,
    name: LockName,
    token: FencingToken,
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the client, which would show how to take its session over.
        f.debug_struct("Fence")
            .field("name", &self.name)
            .field("token", &self.token)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Fence {
    /// The fence of the lock that `guard` holds, for writes by `client`.
    ///
    /// `root` is the path of the store's URL, `/polylock` if that has none; always the whole one, though `client` may have a
    /// chroot, of which the root must be a part then. That it is the node of this grant is verified, so wrong arguments are
    /// an error, never a fence that guards nothing.
    ///
    /// It asks the servers twice, for all writes to come. What `client` reads after it, has all that earlier holders have
    /// written, unless the ensemble is just changing its leader: if it must then, too, make an [empty write](Self::write)
    /// first, or give the version that was read with each write.
    ///
    /// # Errors
    /// [`Error::NoLongerHeld`], [`Error::NotFound`], [`Error::OutOfReach`], [`Error::InvalidRoot`], [`Error::Denied`],
    /// and [`Error::Refused`] or [`Error::Unanswered`] if the servers could not be asked.
    ///
    /// # Cancel safety
    /// Yes: it only looks.
    pub async fn of(client: &Client, root: &str, guard: &Guard) -> Result<Self> {
        let (name, token) = (guard.name(), guard.fencing_token());
        let root = config::root(root.strip_prefix('/').unwrap_or(root))?;
        let seen = seen_below(client.path(), &root)
            .ok_or_else(|| Error::OutOfReach { root: root.clone(), chroot: client.path().to_owned() })?;
        let directory = nodes::directory(seen, name);
        let found = node(client, &directory, guard).await.map_err(|error| Error::of(error, name))?;
        match found {
            Some(path) => Ok(Self { client: client.clone(), path, name: name.clone(), token }),
            None if guard.is_held() => Err(Error::NotFound { name: name.clone(), token, root }),
            None => Err(Error::NoLongerHeld { name: name.clone(), token }),
        }
    }

    /// Writes in one transaction whatever is put into it, all or nothing, if the lock's node is still there.
    ///
    /// An empty one, `|_| Ok(())`, only asks whether it is, and then `client` has seen whatever was written before.
    ///
    /// It has no time limit of its own: while there is no connection it waits for one until the client's session has ended.
    /// However late it arrives, the lock's node is looked at then.
    ///
    /// # Errors
    /// [`Error::NoLongerHeld`] if the lock is gone, [`Error::Refused`] if one of the operations is, [`Error::Denied`]:
    /// nothing was written. [`Error::Unanswered`] if nobody knows.
    ///
    /// # Cancel safety
    /// Nothing is sent before it is polled. If it is dropped later, it has been written or not, or will be as long as the lock is
    /// held.
    pub async fn write<F>(&self, operations: F) -> Result<Vec<MultiWriteResult>>
    where
        F: FnOnce(&mut CheckWriter<'_>) -> Result<(), Failure> + Send,
    {
        let prepared = self.client.new_check_writer(&self.path, None).and_then(|mut writer| {
            operations(&mut writer)?;
            Ok(writer)
        });
        let writer = prepared.map_err(|source| Error::Refused { index: None, source })?;
        writer.commit().await.map_err(|error| match error {
            CheckWriteError::CheckFailed { source: Failure::NoNode } => {
                Error::NoLongerHeld { name: self.name.clone(), token: self.token }
            }
            CheckWriteError::CheckFailed { source } | CheckWriteError::RequestFailed { source } => {
                Error::of(source, &self.name)
            }
            CheckWriteError::OperationFailed { index, source } => {
                Error::Refused { index: Some(index), source }
            }
        })
    }

    /// The lock's node as the client sees it, for transactions of your own: check it, at any version, in each of them.
    /// A break writes its notice into the node, which changes the version. No other node ever has that name.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// The `path` as a client with this chroot sees it.
fn seen_below<'a>(chroot: &str, path: &'a str) -> Option<&'a str> {
    if chroot == "/" {
        return Some(path);
    }
    path.strip_prefix(chroot).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The node by which `guard` holds its lock.
async fn node(client: &Client, directory: &str, guard: &Guard) -> Result<Option<String>, Failure> {
    // In this order on one connection: the server answers the second when it has caught up with the leader.
    let (sync, listed) = join(client.sync("/"), client.list_children(directory)).await;
    sync?;
    let requests = nodes::requests(none_if_missing(listed)?.unwrap_or_default());
    let standpoints = nodes::standpoints(&requests);
    let holders = requests
        .iter()
        .zip(0_u64..)
        .filter(|(child, at)| queue::blockers(&standpoints, *at, child.mode).next().is_none());
    let looks = holders.map(async |(child, _)| {
        let path = format!("{directory}/{}", child.name);
        let found = none_if_missing(client.get_data(&path).await)?;
        let ours = found.is_some_and(|(data, stat)| {
            // The owner, too: young ensembles count alike, and this one may be another than the lock's.
            stat.czxid == guard.fencing_token().as_i64()
                && NodeData::parse(&data).is_some_and(|those| those.owner == *guard.owner())
        });
        Ok::<_, Failure>(ours.then_some(path))
    });
    Ok(try_join_all(looks).await?.into_iter().flatten().next())
}

/// Why there is no fence, or a write was not made, by what the caller can do about it.
///
/// `Display` tells this error's own part; the servers' own words are in [`source`](std::error::Error::source).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock's node is gone. Nothing was written.
    #[error(
        "lock {name} is no longer held with fencing token {token}: give up this work, and acquire the lock again if it \
         must be done"
    )]
    NoLongerHeld {
        /// The lock.
        name: LockName,
        /// Of the grant that is over.
        token: FencingToken,
    },
    /// The guard's time is not over, and there is no node of it.
    #[error(
        "lock {name} has no node with fencing token {token} below {root}: give the path of the URL of the guard's own \
         store, and a client of the same ensemble; if they are right, somebody has broken the lock"
    )]
    NotFound {
        /// The lock.
        name: LockName,
        /// Of the guard.
        token: FencingToken,
        /// Where it was looked for.
        root: String,
    },
    /// The client can't see the locks.
    #[error(
        "the client sees only what is below {chroot}, and the locks are below {root}: give it a chroot that holds both \
         them and your data, or none"
    )]
    OutOfReach {
        /// Where the locks are.
        root: String,
        /// The client's.
        chroot: String,
    },
    /// Not the path of a store.
    #[error(transparent)]
    InvalidRoot(#[from] ConfigError),
    /// The client may not read the nodes of the lock. Nothing was written.
    #[error(
        "the client may not read the nodes of lock {name}: let it have the user of the store's URL, or set \
         polylock.access=open there"
    )]
    Denied {
        /// The lock.
        name: LockName,
        /// The servers' own words.
        source: Failure,
    },
    /// It was refused for another reason than the lock. Nothing was written.
    #[error("refused{}, and nothing was written", index.map_or_else(String::new, |index| format!(" because of operation {index}")))]
    Refused {
        /// Which of the write's operations, from 0 on, if it was one that was sent.
        index: Option<usize>,
        /// The servers' or the driver's own words.
        source: Failure,
    },
    /// There is no answer. A write may have been made, or not, or will be as long as the lock is held.
    #[error(
        "the servers did not answer: a write may have been made; the same again is safe if it has the version that was read"
    )]
    Unanswered {
        /// The driver's own words.
        source: Failure,
    },
}

impl Error {
    /// Whether the lock is no longer held.
    #[must_use]
    pub const fn is_no_longer_held(&self) -> bool {
        matches!(self, Self::NoLongerHeld { .. })
    }

    fn of(source: Failure, name: &LockName) -> Self {
        match outcome(&source) {
            Outcome::Refused if source == Failure::NoAuth => Self::Denied { name: name.clone(), source },
            Outcome::Refused => Self::Refused { index: None, source },
            // What was under way when a session ended may have been carried out before.
            Outcome::Unknown | Outcome::Ended => Self::Unanswered { source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chroot_takes_away_whole_names_only() {
        for (chroot, path, seen) in [
            ("/", "/a/b", Some("/a/b")),
            ("/a", "/a/b", Some("/b")),
            ("/a/b", "/a/b", Some("")),
            ("/a", "/ab", None),
            ("/a/b/c", "/a/b", None),
            ("/b", "/a/b", None),
        ] {
            assert_eq!(seen_below(chroot, path), seen, "{path} below {chroot}");
        }
    }

    #[test]
    fn what_may_have_been_written_is_not_told_as_refused() {
        let name = LockName::new("n").unwrap();
        let of = |failure| Error::of(failure, &name);
        for failure in
            [Failure::ConnectionLoss, Failure::SessionExpired, Failure::ClientClosed, Failure::Timeout]
        {
            assert!(matches!(of(failure), Error::Unanswered { .. }));
        }
        assert!(matches!(of(Failure::NoAuth), Error::Denied { .. }));
        assert!(matches!(of(Failure::Throttled), Error::Refused { .. }));
    }
}
