//! A simulated client of the servers, for tests of this store in virtual time. This module is unstable: it is no part of the interface
//! that versions promise.
//!
//! The driver opens its own sockets and reads the real clock, so the simulation replaces the driver, and nothing above it.

pub(crate) mod client;

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::sync::{oneshot, watch};
use zookeeper_client::{Error, SessionState, Stat, WatchedEvent};

/// Opens sessions for one process.
pub trait Ensemble: fmt::Debug + Send + Sync {
    /// Opens a session. `timeout` is the requested session timeout, and `silence` the longest silence of a server before the client tries
    /// another one.
    fn connect(
        &self,
        timeout: Duration,
        silence: Duration,
    ) -> BoxFuture<'static, Result<Arc<dyn Session>, Error>>;
}

/// A session. It is closed when it is dropped.
pub trait Session: fmt::Debug + Send + Sync {
    /// Returns the id.
    fn id(&self) -> i64;

    /// Returns the timeout that the servers granted.
    fn timeout(&self) -> Duration;

    /// Returns the state, which changes.
    fn states(&self) -> watch::Receiver<SessionState>;

    /// Sends a request, before this returns, and returns a future of its reply.
    fn send(&self, request: Request) -> BoxFuture<'static, Result<Reply, Error>>;
}

/// The receiver of the event of a one-shot watch.
pub type Watch = oneshot::Receiver<WatchedEvent>;

/// A request of a session.
#[derive(Debug, Clone)]
pub enum Request {
    /// Reads the state of a node, and watches it if `watches`. The reply is [`Reply::State`].
    Check {
        /// The node.
        path: String,
        /// True if the session is notified of the next change.
        watches: bool,
    },
    /// Reads the data of a node, and watches it if `watches` and it exists. The reply is [`Reply::Data`].
    Read {
        /// The node.
        path: String,
        /// True if the session is notified of the next change.
        watches: bool,
    },
    /// Reads the data of several nodes. The reply is [`Reply::All`].
    ReadAll(Vec<String>),
    /// Lists the children of a node. The reply is [`Reply::Children`].
    List(String),
    /// Waits until the server has caught up with the leader. The reply is [`Reply::Done`].
    Sync,
    /// Makes one change. The reply is [`Reply::Created`] or [`Reply::Done`].
    Change(Change),
    /// Makes all changes or none. The reply is [`Reply::Done`] or [`Reply::Refused`].
    Transaction(Vec<Change>),
}

/// A change of a node.
#[derive(Debug, Clone)]
pub enum Change {
    /// Checks that the node exists.
    Exists(String),
    /// Creates a node.
    Create {
        /// The node, without its sequence.
        path: String,
        /// Its data.
        data: Vec<u8>,
        /// True for a node that ends with the session and has a sequence; otherwise it is permanent.
        is_ephemeral: bool,
    },
    /// Writes the data of a node.
    Write {
        /// The node.
        path: String,
        /// Its new data.
        data: Vec<u8>,
        /// The version that the node must have, if any.
        version: Option<i32>,
    },
    /// Deletes a node without children.
    Delete(String),
}

/// The reply to a request.
#[derive(Debug)]
pub enum Reply {
    /// The state of a node, if it exists.
    State(Option<Stat>, Option<Watch>),
    /// The data of a node.
    Data(Vec<u8>, Stat, Option<Watch>),
    /// The data of several nodes.
    All(Vec<Result<(Vec<u8>, Stat), Error>>),
    /// The names of the children of a node.
    Children(Vec<String>),
    /// A created node, and its sequence.
    Created(Stat, i64),
    /// The request was carried out.
    Done,
    /// The change with this index was refused, so none was made.
    Refused(usize, Error),
}
