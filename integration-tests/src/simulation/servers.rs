//! The servers of a run, as the processes, the faults and the checks see them. Each store has its own.

use std::{fmt, io, pin::Pin, sync::Arc};

use polylock_core::{FencingToken, LockName, Store, simulation::Connecting};

use super::{live_entry::LiveEntry, record::Record, violation::Violation};

/// A process in one of its lives: its number, and the number of its restarts.
pub type Life = (usize, u64);

/// A future that opens the store.
pub type Opening = Pin<Box<dyn Future<Output = Store> + Send>>;

/// The events of a run outside of the servers.
#[derive(Debug)]
pub struct Events<'a> {
    /// The record of the clients.
    pub record: &'a Record,
    /// The present life of each process.
    pub lives: &'a [u64],
}

impl Events<'_> {
    /// Returns the process of this owner, `p<process>.<life>/...`, if it is in that life.
    #[must_use]
    pub fn living(&self, owner: &str) -> Option<usize> {
        let (process, _) = owner.split_once('/')?;
        let (process, life) = process.strip_prefix('p')?.split_once('.')?;
        let (process, life): (usize, u64) = (process.parse().ok()?, life.parse().ok()?);
        (self.lives.get(process) == Some(&life)).then_some(process)
    }
}

/// The servers of a run.
pub trait Servers: fmt::Debug + Send + Sync {
    /// Opens the store in the process that polls the future.
    fn open(self: Arc<Self>, life: Life) -> Opening;

    /// Opens a connection from a process to a server. The default refuses it.
    fn connect(&self, _process: Life, address: &str) -> Connecting {
        let error = io::Error::other(format!("no server at {address}"));
        Box::pin(async { Err(error) })
    }

    /// Ends the connections of a process that has crashed.
    fn end_process(&self, _process: usize) {}

    /// Stops the connections that a process has to a server: what is sent on some of them arrives after `until`, and on the others not at
    /// all. By default there are none.
    fn stick(&self, _process: usize, _server: usize, _until: u64) {}

    /// Makes a server refuse some calls until `until`. By default it refuses none.
    fn refuse(&self, _server: usize, _until: u64) {}

    /// Stops a server.
    fn pause(&self, server: usize);

    /// Continues a server, which executes the calls that have arrived.
    fn resume(&self, server: usize);

    /// Ends a server. Calls that have arrived are lost.
    fn crash(&self, server: usize);

    /// Starts a server again.
    fn restart(&self, server: usize);

    /// Cuts a server off from the other servers, or from the store behind it, until `until`. By default it has no contact with any.
    fn cut(&self, _server: usize, _until: u64) {}

    /// Ends the effect of [`cut`](Self::cut).
    fn heal(&self, _server: usize) {}

    /// Returns the time of the run at which the hold of `name` with `token` expires, unless it was renewed later; `None` if that is not
    /// known.
    fn expires(&self, name: &LockName, token: FencingToken) -> Option<u64>;

    /// Returns the live entries.
    fn live(&self) -> Vec<LiveEntry>;

    /// Returns the broken promises that the servers know of, at the end of a run.
    fn violations(&self, events: &Events<'_>) -> Vec<Violation>;
}
