//! The servers of a store, and which of them serves a lock.

use std::{borrow::Cow, collections::BTreeSet, fmt, sync::Arc, time::Duration};

use polylock_core::{Error, Fault, LockName, Operation, Result};
use redis::{FromRedisValue, Value};

use crate::{
    call::Call,
    cluster::Nodes,
    error::Cause,
    keys::Keys,
    link::{Link, Reply},
};

/// The servers of a store.
#[derive(Debug)]
pub(crate) enum Servers {
    /// One, with the client's channel there.
    One {
        link: Box<Link>,
        channel: String,
    },
    Cluster(Arc<Nodes>),
}

impl Servers {
    /// Sends a call about the lock `name`; see [`Link::call`]. A client whose request is `queued` receives messages from then on.
    ///
    /// # Cancel safety
    /// As [`Link::call`].
    pub(super) async fn call(
        &self,
        name: &LockName,
        operation: Operation,
        timeout: Duration,
        call: Call<'_>,
        queued: bool,
    ) -> Reply {
        match self {
            Self::One { link, .. } => link.call(operation, timeout, call).await,
            Self::Cluster(nodes) => nodes.call(name, operation, timeout, call, queued).await,
        }
    }

    /// The channel of this client for messages about the lock `name`.
    pub(super) fn channel(&self, name: &LockName) -> Cow<'_, str> {
        match self {
            Self::One { channel, .. } => Cow::Borrowed(channel),
            Self::Cluster(nodes) => Cow::Owned(nodes.channel(name)),
        }
    }

    /// The names that begin with `names`, of all locks that have a key of these kinds.
    ///
    /// # Errors
    /// If one of the servers is unavailable.
    pub(super) async fn in_use(&self, keys: &Keys, kinds: &str, names: &str) -> Result<BTreeSet<LockName>> {
        match self {
            Self::One { link, .. } => keys.in_use(link, kinds, names).await,
            Self::Cluster(nodes) => nodes.in_use(keys, kinds, names).await,
        }
    }

    /// Converts a server's reply into the type that it should have.
    pub(super) fn read<T: FromRedisValue>(&self, operation: Operation, reply: Value) -> Result<T> {
        redis::from_redis_value(reply).map_err(|error| self.unexpected(operation, error))
    }

    /// A server has sent a reply that it never should.
    pub(super) fn unexpected(&self, operation: Operation, what: impl fmt::Display) -> Error {
        let advice = format!("unexpected reply: {what}");
        self.failed(operation, Cause::Unusable(Fault::Permanent, advice))
    }

    /// `operation` failed for this reason.
    pub(super) fn failed(&self, operation: Operation, cause: Cause) -> Error {
        match self {
            Self::One { link, .. } => link.failed(operation, cause),
            Self::Cluster(nodes) => nodes.failed(operation, cause),
        }
    }
}
