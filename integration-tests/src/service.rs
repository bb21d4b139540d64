//! A lock service in this process.

use std::thread::{self, JoinHandle};

use polylock::{StoreUrl, read_url};
use tokio::{net::TcpListener, sync::oneshot};

/// A lock service in front of a store, in a thread with its own runtime. It ends when this is dropped.
#[derive(Debug)]
pub struct Service {
    url: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts a service on a free port, in front of the store with this URL.
    ///
    /// # Panics
    /// If the store can't be opened, or there is no port.
    #[must_use]
    pub fn start(store: &str) -> Self {
        let store = StoreUrl::parse(store).and_then(|url| read_url(&url));
        let (_, config) = store.unwrap_or_else(|error| panic!("the store of a service: {error}"));
        let (stop, stopped) = oneshot::channel();
        let (sender, started) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.unwrap_or_else(|error| panic!("no runtime: {error}"));
            runtime.block_on(async move {
                let store = config.open().await.unwrap_or_else(|error| panic!("{}", error.chain()));
                let listener = TcpListener::bind("127.0.0.1:0").await;
                let listener = listener.unwrap_or_else(|error| panic!("no port: {error}"));
                sender.send(listener.local_addr()).ok();
                let stopped = async { drop(stopped.await) };
                let service = polylock_server::Service::new(store);
                let service = service.unwrap_or_else(|error| panic!("{error}"));
                polylock_server::serve(listener, service, stopped).await;
            });
        });
        let address = started.recv().unwrap_or_else(|_| panic!("the service has not started"));
        let address = address.unwrap_or_else(|error| panic!("no address: {error}"));
        Self { url: format!("polylock+http://{address}"), stop: Some(stop), thread: Some(thread) }
    }

    /// Returns the URL of the service as a store.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
