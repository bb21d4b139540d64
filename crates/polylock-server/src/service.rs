//! A store that is offered to clients.

use std::{future::Future, sync::Arc};

use polylock_core::{Backend, LockName, Result, Store};
use polylock_protocol::StoreBody;
use tokio::sync::broadcast;

use crate::{clock::ServerClock, turns::Turns};

/// The number of names of broken locks that a slow reader may be behind.
const ALERTS: usize = 1024;

/// A store that is offered to the clients of a server. Copies share it.
#[derive(Debug, Clone)]
pub struct Service(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) clock: ServerClock,
    pub(crate) turns: Turns,
    pub(crate) alerts: broadcast::Sender<LockName>,
}

impl Service {
    /// Offers `store`.
    #[must_use]
    pub fn new(store: Store) -> Self {
        let (alerts, _) = broadcast::channel(ALERTS);
        if let Some(source) = &store.alerts {
            let alerts = alerts.clone();
            source.listen(move |name| {
                // Without a reader there is nobody to notify.
                alerts.send(name.clone()).ok();
                true
            });
        }
        Self(Arc::new(Inner { store, clock: ServerClock::new(), turns: Turns::default(), alerts }))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }
}

impl Inner {
    pub(crate) fn description(&self) -> StoreBody {
        let Store { backend, inspect, alerts, raise, records, convert } = &self.store;
        let capabilities = backend.capabilities();
        StoreBody {
            store: capabilities.backend.to_owned(),
            capabilities: capabilities.into(),
            inspects: inspect.is_some(),
            alerts: alerts.is_some(),
            raises: raise.is_some(),
            keeps_records: records.is_some(),
            converts: convert.is_some(),
        }
    }

    /// Carries an operation out on the thread of the store, to its end: even if the client disconnects.
    pub(crate) async fn run<T, F>(
        self: &Arc<Self>,
        operation: impl FnOnce(Arc<Self>, Arc<dyn Backend>) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let backend = self.store.backend.clone();
        let name = backend.capabilities().backend;
        polylock_core::io::run(name, operation(self.clone(), backend)).await?
    }
}
