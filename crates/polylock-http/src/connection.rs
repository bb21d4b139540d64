//! The connection to one server. HTTP/2 sends all requests on one connection, so a connection that the network has dropped without an
//! error would cost each of them its time limit, until a ping finds it.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use polylock_core::{Clock, ConfigError, Moment, SystemClock, sync::lock};
use reqwest::Client;

#[cfg(feature = "simulation")]
use crate::simulated::Connections;

/// Creates a client, which has no connection yet.
type Create = Arc<dyn Fn() -> Result<Client, ConfigError> + Send + Sync>;

/// A connection, which is replaced when it is silent. Requests that wait on the silent one stay there.
#[derive(Clone)]
pub(crate) struct Connection {
    create: Create,
    current: Arc<Mutex<Current>>,
    #[cfg(feature = "simulation")]
    pub(crate) simulated: Arc<Connections>,
}

#[derive(Debug)]
struct Current {
    client: Client,
    /// The number of connections before this one.
    number: u64,
    /// The time of the last reply on it.
    replied: Moment,
    is_being_replaced: bool,
}

/// A request on one of the connections.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) client: Client,
    number: u64,
    sent: Moment,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn new(client: Client, create: Create) -> Self {
        let current = Current { client, number: 0, replied: SystemClock.now(), is_being_replaced: false };
        Self {
            create,
            current: Arc::new(Mutex::new(current)),
            #[cfg(feature = "simulation")]
            simulated: Arc::default(),
        }
    }

    /// Begins a request.
    pub(crate) fn send(&self) -> Sending {
        let current = lock(&self.current);
        Sending { client: current.client.clone(), number: current.number, sent: SystemClock.now() }
    }

    /// Records that a request has a reply.
    pub(crate) fn replied(&self, request: &Sending) {
        let mut current = lock(&self.current);
        if current.number == request.number {
            current.replied = SystemClock.now();
        }
    }

    /// Records that a request has no reply in time. If no other one has had a reply since then, further requests use a new connection.
    pub(crate) fn unanswered(&self, request: &Sending) {
        let mut current = lock(&self.current);
        if current.number != request.number || current.replied >= request.sent || current.is_being_replaced {
            return;
        }
        #[cfg(feature = "simulation")]
        if self.simulated.replace() {
            current.number += 1;
            current.replied = SystemClock.now();
            return;
        }
        current.is_being_replaced = true;
        drop(current);
        let this = self.clone();
        // It may read the certificates of the system.
        tokio::task::spawn_blocking(move || {
            let new = (this.create)();
            let mut current = lock(&this.current);
            current.is_being_replaced = false;
            if let Ok(client) = new {
                *current = Current {
                    client,
                    number: current.number + 1,
                    replied: SystemClock.now(),
                    is_being_replaced: false,
                };
            }
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::*;
    use crate::{config::Config, servers};

    const LIMIT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn a_silent_connection_is_replaced() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("polylock+http://{}", listener.local_addr().unwrap());
        let server = servers::servers(&Config::new(&url).unwrap()).unwrap().remove(0);
        // It accepts connections, and never replies.
        let (first, second) = tokio::join!(listener.accept(), async {
            let end = SystemClock.now() + Duration::from_secs(5);
            loop {
                assert!(SystemClock.now() < end, "all requests are sent on the silent connection");
                assert!(server.store(LIMIT).await.is_err());
                if let Some(second) = SystemClock.before(SystemClock.now() + LIMIT, listener.accept()).await {
                    break second;
                }
            }
        });
        assert_ne!(first.unwrap().1, second.unwrap().1);
    }

    #[tokio::test]
    async fn a_slow_operation_does_not_replace_a_connection_with_replies() {
        let create = || servers::client(&Config::new("polylock+http://127.0.0.1")?);
        let connection = Connection::new(create().unwrap(), Arc::new(create));
        let slow = connection.send();
        connection.replied(&connection.send());
        connection.unanswered(&slow);
        assert!(!lock(&connection.current).is_being_replaced);
        let silent = connection.send();
        connection.unanswered(&silent);
        while connection.send().number == 0 {
            tokio::task::yield_now().await;
        }
        // The next one is not replaced for it.
        connection.unanswered(&silent);
        assert!(!lock(&connection.current).is_being_replaced);
    }
}
