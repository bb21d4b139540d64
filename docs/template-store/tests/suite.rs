//! Every case of the conformance suite.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use async_trait::async_trait;
use polylock_core::{Result, Store};
use polylock_testkit::Target;
use template_store::{Config, connect};

/// A namespace that nothing else uses.
struct Namespace(String);

impl Namespace {
    fn fresh() -> Self {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        Self(format!("test-{}", LAST.fetch_add(1, SeqCst)))
    }
}

#[async_trait]
impl Target for Namespace {
    async fn connect(&self) -> Result<Store> {
        connect(Config::new(&self.0)).await
    }
}

polylock_testkit::conformance!(template, || async { Namespace::fresh() });
