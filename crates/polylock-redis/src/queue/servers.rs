//! The servers of a store, and the server of each lock.

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
    /// One server, and the client's channel there.
    Single {
        link: Arc<Link>,
        channel: String,
    },
    Cluster(Arc<Nodes>),
}

impl Servers {
    /// Sends a call about the lock `name`; see [`Link::call`]. If the request is `queued`, the client receives messages from then on.
    ///
    /// # Cancel safety
    /// See [`Link::call`].
    pub(super) async fn call(
        &self,
        name: &LockName,
        operation: Operation,
        timeout: Duration,
        call: Call<'_>,
        queued: bool,
    ) -> Reply {
        match self {
            Self::Single { link, .. } => link.call(operation, timeout, call).await,
            Self::Cluster(nodes) => nodes.call(name, operation, timeout, call, queued).await,
        }
    }

    /// Returns the channel of this client for messages about the lock `name`.
    pub(super) fn channel(&self, name: &LockName) -> Cow<'_, str> {
        match self {
            Self::Single { channel, .. } => Cow::Borrowed(channel),
            Self::Cluster(nodes) => Cow::Owned(nodes.channel(name)),
        }
    }

    /// Returns the names that begin with `names`, of all locks that have a key of these kinds.
    ///
    /// # Errors
    /// If one of the servers is unavailable.
    pub(super) async fn scan_names(
        &self,
        keys: &Keys,
        kinds: &str,
        names: &str,
    ) -> Result<BTreeSet<LockName>> {
        match self {
            Self::Single { link, .. } => keys.scan_names(link, kinds, names).await,
            Self::Cluster(nodes) => nodes.scan_names(keys, kinds, names).await,
        }
    }

    /// Converts a server's reply into the expected type.
    pub(super) fn read<T: FromRedisValue>(&self, operation: Operation, reply: Value) -> Result<T> {
        redis::from_redis_value(reply).map_err(|error| self.unexpected(operation, error))
    }

    /// Returns the error of `operation` for an unexpected reply.
    pub(super) fn unexpected(&self, operation: Operation, detail: impl fmt::Display) -> Error {
        let advice = format!("unexpected reply: {detail}");
        self.failed(operation, Cause::Unusable(Fault::Permanent, advice))
    }

    /// Returns the error of `operation` with this cause.
    pub(super) fn failed(&self, operation: Operation, cause: Cause) -> Error {
        match self {
            Self::Single { link, .. } => link.failed(operation, cause),
            Self::Cluster(nodes) => nodes.failed(operation, cause),
        }
    }
}
