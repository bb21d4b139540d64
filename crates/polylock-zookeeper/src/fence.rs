//! Fenced writes to your own data in the same ensemble: the servers check the lock's node in the transaction of the write.
//!
//! A lease can't stop a holder that is paused between its last check of the lock and the arrival of its write. ZooKeeper can: **a write
//! is applied only if the node of this grant still exists in that transaction**, in the total order of all transactions of the ensemble.
//! This is stronger than the comparison of tokens by other resources: a write is refused as soon as the lock is gone, not only after a
//! later holder has written. It needs no clock and no token in your data, but all writers must do the same.
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
//! # Safety of a fenced write
//!
//! 1. P holds the lock, sends a write, and is paused, or its packets are delayed. Its lease runs out.
//! 2. A transaction ends P's session, or deletes P's node in another way. From here on the check fails.
//! 3. Only then is Q's node the first, and Q has the lock. Q reads the data that P left, and writes.
//! 4. P's write arrives, or P sends another: its node is gone, and no later node has that name. The write is refused as a whole.
//!
//! So P's write is applied either before the end of P's hold or never. [`Fence::of`] also brings Q's client up to date, so that step 3
//! reads P's write: servers may lag, and your client may be connected to another server than the store.
//!
//! # Requirements
//!
//! * Every writer must use the fence. A plain `set_data` is not stopped.
//! * Data outside of this ensemble can't be in the transaction: send [the token](Guard::fencing_token) along, and let the resource
//!   compare it.
//! * An unanswered write may have been applied. Retrying is safe if the write is idempotent: with the version that was read, it is
//!   applied once at most.
//! * The client needs permission to read the nodes of locks. If the store has a user, give it to the client, too (`Connector::with_auth`,
//!   or [`Client::auth`]), or set `polylock.access=open`.

use std::fmt;

use futures_util::future::{join, try_join_all};
use polylock_core::{ConfigError, FencingToken, Guard, LockName, metrics, queue};
use zookeeper_client::{CheckWriteError, CheckWriter, Client, Error as Failure, MultiWriteResult};

use crate::{
    NAME, config,
    error::{Outcome, outcome},
    nodes::{self, NodeData},
    session::none_if_missing,
};

/// A result with this module's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Writes of the holder of one lock to its own data in the same ensemble, refused once the lock is gone. See the [module](self).
///
/// It borrows nothing, and does not keep the lock. It belongs to one grant: create a new fence for the next grant.
#[derive(Clone)]
pub struct Fence {
    client: Client,
    path: String,
    name: LockName,
    token: FencingToken,
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The client is omitted: its output would reveal the session id and password.
        f.debug_struct("Fence")
            .field("name", &self.name)
            .field("token", &self.token)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Fence {
    /// Returns the fence of the lock that `guard` holds, for writes by `client`.
    ///
    /// `root` is the path of the store's URL, `/polylock` if the URL has none. It is always the full path, also if `client` has a chroot,
    /// which must then contain the root. The node is verified to be the one of this grant, so wrong arguments cause an error, never an
    /// ineffective fence.
    ///
    /// This takes two round trips, for all later writes together. Later reads of `client` return the writes of all earlier holders,
    /// except during a change of the leader: if your reads must be current then, too, make an [empty write](Self::write) first, or give
    /// the version that was read with each write.
    ///
    /// # Errors
    /// [`Error::NoLongerHeld`], [`Error::NotFound`], [`Error::OutsideChroot`], [`Error::InvalidRoot`], [`Error::Denied`], and
    /// [`Error::Refused`] or [`Error::Unanswered`] if the servers could not be reached.
    ///
    /// # Cancel safety
    /// Cancel-safe: it only reads.
    pub async fn of(client: &Client, root: &str, guard: &Guard) -> Result<Self> {
        let (name, token) = (guard.name(), guard.fencing_token());
        let root = config::root(root.strip_prefix('/').unwrap_or(root))?;
        let visible_root = below_chroot(client.path(), &root)
            .ok_or_else(|| Error::OutsideChroot { root: root.clone(), chroot: client.path().to_owned() })?;
        let directory = nodes::directory(visible_root, name);
        let found = node(client, &directory, guard).await.map_err(|error| Error::of(error, name))?;
        match found {
            Some(path) => Ok(Self { client: client.clone(), path, name: name.clone(), token }),
            None if guard.is_held() => Err(Error::NotFound { name: name.clone(), token, root }),
            None => Err(Error::NoLongerHeld { name: name.clone(), token }),
        }
    }

    /// Commits `operations` in one transaction, all or nothing, if the lock's node still exists.
    ///
    /// An empty write, `|_| Ok(())`, only checks the node; later reads of `client` then return all earlier writes.
    ///
    /// It has no time limit of its own: without a connection it waits for one until the client's session has ended. The lock's node is
    /// checked when the write arrives, however late that is.
    ///
    /// # Errors
    /// [`Error::NoLongerHeld`] if the lock is gone, [`Error::Refused`] if an operation is refused, [`Error::Denied`]: nothing was
    /// written. [`Error::Unanswered`] if the outcome is unknown.
    ///
    /// # Cancel safety
    /// Nothing is sent before the first poll. If the future is dropped later, the write may have been applied, or may still be applied as
    /// long as the lock is held.
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
                metrics::fencing_rejected(NAME);
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

    /// Returns the path of the lock's node as the client sees it, for your own transactions: check the node, at any version, in each of
    /// them. A break writes its notice into the node, which changes the version. No other node ever has that name.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// Returns `path` as a client with this chroot sees it; `None` if the chroot does not contain it.
fn below_chroot<'a>(chroot: &str, path: &'a str) -> Option<&'a str> {
    if chroot == "/" {
        return Some(path);
    }
    path.strip_prefix(chroot).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the path of the node by which `guard` holds its lock.
async fn node(client: &Client, directory: &str, guard: &Guard) -> Result<Option<String>, Failure> {
    // Sent in this order on one connection: the server answers the list after it has caught up with the leader.
    let (sync, listed) = join(client.sync("/"), client.list_children(directory)).await;
    sync?;
    let requests = nodes::requests(none_if_missing(listed)?.unwrap_or_default());
    let queue_entries = nodes::queue_entries(&requests);
    let holders = requests
        .iter()
        .zip(0_u64..)
        .filter(|(child, at)| queue::blockers(&queue_entries, *at, child.mode).next().is_none());
    let reads = holders.map(async |(child, _)| {
        let path = format!("{directory}/{}", child.name);
        let found = none_if_missing(client.get_data(&path).await)?;
        let is_of_grant = found.is_some_and(|(data, stat)| {
            // The owner is compared, too: the transaction ids of new ensembles are similar, and this may not be the lock's ensemble.
            stat.czxid == guard.fencing_token().as_i64()
                && NodeData::parse(&data).is_some_and(|data| data.owner == *guard.owner())
        });
        Ok::<_, Failure>(is_of_grant.then_some(path))
    });
    Ok(try_join_all(reads).await?.into_iter().flatten().next())
}

/// The reason why a fence could not be created or a write failed, classified by the remedy.
///
/// `Display` shows only this error's own message; the driver's error is its [`source`](std::error::Error::source).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock's node is gone. Nothing was written.
    #[error(
        "lock {name} is no longer held with fencing token {token}: stop this work, and acquire the lock again to \
         repeat it"
    )]
    NoLongerHeld {
        /// The lock.
        name: LockName,
        /// The token of the lost grant.
        token: FencingToken,
    },
    /// The guard's lease has not ended, but there is no node of its grant.
    #[error(
        "lock {name} has no node with fencing token {token} below {root}: give the path of the URL of the guard's own \
         store, and a client of the same ensemble; if both are right, the lock was broken"
    )]
    NotFound {
        /// The lock.
        name: LockName,
        /// The token of the guard.
        token: FencingToken,
        /// The path that was searched.
        root: String,
    },
    /// The client's chroot does not contain the locks.
    #[error(
        "the chroot {chroot} of the client does not contain {root}: give the client a chroot that contains the locks and \
         your data, or none"
    )]
    OutsideChroot {
        /// The path that contains the locks.
        root: String,
        /// The client's chroot.
        chroot: String,
    },
    /// The root is not a valid path of a store.
    #[error(transparent)]
    InvalidRoot(#[from] ConfigError),
    /// The client may not read the nodes of the lock. Nothing was written.
    #[error(
        "the client may not read the nodes of lock {name}: authenticate it as the user of the store's URL, or set \
         polylock.access=open there"
    )]
    Denied {
        /// The lock.
        name: LockName,
        /// The driver's error.
        source: Failure,
    },
    /// The write was refused for another reason than the lock. Nothing was written.
    #[error("refused{}, and nothing was written", index.map_or_else(String::new, |index| format!(" because of operation {index}")))]
    Refused {
        /// The index of the refused operation, from 0, if an operation that was sent caused the error.
        index: Option<usize>,
        /// The driver's error.
        source: Failure,
    },
    /// The servers did not answer. The write may have been applied, or may still be applied as long as the lock is held.
    #[error(
        "the servers did not answer: the write may have been applied; a retry is safe if it gives the version that was read"
    )]
    Unanswered {
        /// The driver's error.
        source: Failure,
    },
}

impl Error {
    /// Returns true if the lock is no longer held.
    #[must_use]
    pub const fn is_no_longer_held(&self) -> bool {
        matches!(self, Self::NoLongerHeld { .. })
    }

    fn of(source: Failure, name: &LockName) -> Self {
        match outcome(&source) {
            Outcome::Refused if source == Failure::NoAuth => Self::Denied { name: name.clone(), source },
            Outcome::Refused => Self::Refused { index: None, source },
            // An operation that was pending at the end of the session may have been carried out before.
            Outcome::Unknown | Outcome::Ended => Self::Unanswered { source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chroot_removes_whole_names_only() {
        for (chroot, path, seen) in [
            ("/", "/a/b", Some("/a/b")),
            ("/a", "/a/b", Some("/b")),
            ("/a/b", "/a/b", Some("")),
            ("/a", "/ab", None),
            ("/a/b/c", "/a/b", None),
            ("/b", "/a/b", None),
        ] {
            assert_eq!(below_chroot(chroot, path), seen, "{path} below {chroot}");
        }
    }

    #[test]
    fn a_write_with_an_unknown_outcome_is_not_reported_as_refused() {
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
