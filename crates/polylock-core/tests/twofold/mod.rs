//! The in-memory store, with a connection for callers whose replies can be lost.
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
    Backend, Capabilities, KeepAlive, Locks, Release, Request, Result, Standing, Store, Wake, memory,
};

/// What the connection of the caller does with the next operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    Comes,
    /// The store carries the operation out, and the reply is lost.
    IsLost,
    /// The operation never reaches the store.
    NeverSent,
    Panics,
}

/// The in-memory store, with a connection for callers whose replies can be lost.
#[derive(Debug)]
pub struct Twofold {
    inner: Store,
    here: Arc<Here>,
}

#[derive(Debug)]
pub struct Here {
    inner: Arc<dyn Backend>,
    reply: Mutex<Reply>,
    driven: AtomicU32,
}

impl Here {
    async fn carry_out<T>(&self, operation: impl Future<Output = Result<T>>) -> Result<T> {
        assert!(thread::current().name() != Some("polylock-memory"), "driven by the caller");
        self.driven.fetch_add(1, Ordering::Relaxed);
        let reply = *self.reply.lock().unwrap();
        if reply == Reply::Panics {
            std::panic::resume_unwind(Box::new("a planted panic"));
        }
        let outcome = if reply == Reply::NeverSent { None } else { Some(operation.await) };
        match outcome {
            Some(outcome) if reply == Reply::Comes => outcome,
            _ => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Backend for Here {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn claim(&self, request: &Request) -> Result<Standing> {
        self.carry_out(self.inner.claim(request)).await
    }

    async fn wait(&self, _: &Request) -> Result<Wake> {
        unreachable!("a caller only claims and releases")
    }

    async fn keep_alive(&self, _: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        unreachable!("a caller only claims and releases")
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.carry_out(self.inner.release(request)).await
    }
}

#[async_trait]
impl Backend for Twofold {
    fn capabilities(&self) -> &Capabilities {
        self.inner.backend.capabilities()
    }

    fn here(&self) -> Option<Arc<dyn Backend>> {
        Some(self.here.clone())
    }

    async fn claim(&self, request: &Request) -> Result<Standing> {
        self.inner.backend.claim(request).await
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        self.inner.backend.wait(request).await
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        self.inner.backend.keep_alive(requests).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.inner.backend.release(request).await
    }
}

/// The locks of such a store, and its connection.
pub fn locks(reply: Reply) -> (Locks, Arc<Here>) {
    let inner = memory::connect();
    let here =
        Arc::new(Here { inner: inner.backend.clone(), reply: Mutex::new(reply), driven: AtomicU32::new(0) });
    let inspect = inner.inspect.clone();
    let twofold = Arc::new(Twofold { inner, here: here.clone() });
    (Locks::new(Store { inspect, ..Store::new(twofold) }), here)
}

impl Here {
    pub fn replies(&self, reply: Reply) {
        *self.reply.lock().unwrap() = reply;
    }

    pub fn driven(&self) -> u32 {
        self.driven.load(Ordering::Relaxed)
    }
}
