//! `polylock serve` in front of a store.

use std::path::Path;

use async_trait::async_trait;
use polylock::Locks;
use polylock_testkit::Missing;

use super::{
    keeper::Keeper,
    private::{self, PrivateServer, ServerKind},
};
use crate::cargo::polylock;

/// Starts `count` of them in front of the store with this URL.
///
/// # Errors
/// Never.
///
/// # Panics
/// If one does not start, with its log.
pub fn start(count: usize, store: &str) -> Result<Vec<PrivateServer>, Missing> {
    (0..count).map(|_| private::start(LockService { store: store.to_owned() })).collect()
}

#[derive(Debug)]
struct LockService {
    store: String,
}

#[async_trait]
impl ServerKind for LockService {
    fn name(&self) -> &'static str {
        "lock-service"
    }

    fn users(&self) -> &'static [&'static str] {
        &["nobody"]
    }

    fn prepare(&self, _: &mut Keeper, port: u16) -> Result<Vec<String>, Missing> {
        let (program, address) = (polylock().display().to_string(), format!("127.0.0.1:{port}"));
        let arguments = ["serve", "-S", &self.store, "--listen", &address].map(str::to_owned);
        Ok([program].into_iter().chain(arguments).collect())
    }

    fn url(&self, port: u16) -> String {
        format!("polylock+http://127.0.0.1:{port}")
    }

    async fn data_directory(&self, url: &str, home: &Path) -> Result<String, String> {
        // It has no data. If another process has the port, it ends.
        let opened = Locks::connect(url).await;
        opened.map(|_| home.display().to_string()).map_err(|error| error.chain())
    }
}
