//! The in-memory store keeps every promise.

use std::sync::atomic::{AtomicU64, Ordering};

use polylock_core::{Result, Store};
use polylock_testkit::Target;

/// An in-memory store with a unique name.
struct Memory(String);

impl Memory {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(format!("testkit {}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }
}

#[async_trait::async_trait]
impl Target for Memory {
    async fn connect(&self) -> Result<Store> {
        Ok(polylock_core::memory::named(&self.0))
    }
}

polylock_testkit::conformance!(memory, || async { Memory::new() });
