//! The in-memory store, with a connection for callers that can lose replies.
#![allow(dead_code, clippy::unwrap_used, unreachable_pub, reason = "tests, each of which uses a part")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Fault, KeepAlive, Locks, Operation, Release, Request, Result, Store,
    Wake, failure::At, memory,
};

/// The behaviour of the caller's connection in the next operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    Delivered,
    /// The store carries the operation out, and the reply is lost.
    Lost,
    /// The operation never reaches the store.
    NeverSent,
    /// The connection has failed, and the operation never reaches the store.
    Fails,
    /// As [`Delivered`](Self::Delivered), and another copy of the operation may be executed later.
    Repeated,
    Panics,
}

/// The in-memory store, with a connection for callers that can lose replies.
#[derive(Debug)]
pub struct TwoConnections {
    inner: Store,
    connection: Arc<CallerConnection>,
}

#[derive(Debug)]
pub struct CallerConnection {
    inner: Arc<dyn Backend>,
    reply: Mutex<Reply>,
    driven: AtomicU32,
    /// The numbers of claims and releases on the I/O thread.
    on_io_thread: [AtomicU32; 2],
}

impl CallerConnection {
    /// Returns the outcome of a claim, with the report of another copy.
    fn reported(&self, outcome: ClaimOutcome) -> ClaimOutcome {
        let is_repeated = *self.reply.lock().unwrap() == Reply::Repeated;
        match outcome {
            ClaimOutcome::Queued(position) => ClaimOutcome::Queued(position.may_be_granted_late(is_repeated)),
            granted @ ClaimOutcome::Granted(_) => granted,
        }
    }

    async fn execute<T>(&self, operation: impl Future<Output = Result<T>>) -> Result<T> {
        assert!(thread::current().name() != Some("polylock-memory"), "driven by the caller");
        self.driven.fetch_add(1, Ordering::Relaxed);
        let reply = *self.reply.lock().unwrap();
        if reply == Reply::Panics {
            std::panic::resume_unwind(Box::new("a planted panic"));
        }
        if reply == Reply::Fails {
            let failed = At { backend: "memory", operation: Operation::Claim, endpoint: "here" };
            return Err(failed.advise(Fault::Temporary, "the connection has ended"));
        }
        let outcome = if reply == Reply::NeverSent { None } else { Some(operation.await) };
        match outcome {
            Some(outcome) if matches!(reply, Reply::Delivered | Reply::Repeated) => outcome,
            _ => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Backend for CallerConnection {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        let outcome = self.execute(self.inner.claim(request)).await?;
        Ok(self.reported(outcome))
    }

    async fn wait(&self, _: &Request) -> Result<Wake> {
        unreachable!("a caller only claims and releases")
    }

    async fn keep_alive(&self, _: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        unreachable!("a caller only claims and releases")
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.execute(self.inner.release(request)).await
    }
}

#[async_trait]
impl Backend for TwoConnections {
    fn capabilities(&self) -> &Capabilities {
        self.inner.backend.capabilities()
    }

    fn here(&self) -> Option<Arc<dyn Backend>> {
        Some(self.connection.clone())
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        self.connection.on_io_thread[0].fetch_add(1, Ordering::Relaxed);
        Ok(self.connection.reported(self.inner.backend.claim(request).await?))
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        self.inner.backend.wait(request).await
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        self.inner.backend.keep_alive(requests).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.connection.on_io_thread[1].fetch_add(1, Ordering::Relaxed);
        self.inner.backend.release(request).await
    }
}

/// Returns the locks of such a store, and its connection.
pub fn locks(reply: Reply) -> (Locks, Arc<CallerConnection>) {
    let inner = memory::connect();
    let connection = Arc::new(CallerConnection {
        inner: inner.backend.clone(),
        reply: Mutex::new(reply),
        driven: AtomicU32::new(0),
        on_io_thread: Default::default(),
    });
    let inspect = inner.inspect.clone();
    let two_connections = Arc::new(TwoConnections { inner, connection: connection.clone() });
    (Locks::new(Store { inspect, ..Store::new(two_connections) }), connection)
}

impl CallerConnection {
    pub fn set_reply(&self, reply: Reply) {
        *self.reply.lock().unwrap() = reply;
    }

    pub fn driven(&self) -> u32 {
        self.driven.load(Ordering::Relaxed)
    }

    /// Returns the numbers of claims and releases on the I/O thread.
    pub fn on_io_thread(&self) -> [u32; 2] {
        self.on_io_thread.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}
