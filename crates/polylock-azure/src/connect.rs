//! Opens the store: checks the access to the container, and creates it if it is missing.

use std::{pin::pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::TryStreamExt;
use polylock_core::{
    Capabilities, Clock, FirstStep, LockName, Modes, Operation, Order, QueueLease, Result, Scope, Store,
    StoreConfig, SystemClock, waiter_queues::WaiterQueues,
};

use crate::{
    NAME,
    attempts::Attempts,
    backend::AzureBackend,
    blobs::Blobs,
    config::Config,
    error::{Cause, Refusal, ignore_exists},
    fairness::Fairness,
    tokens::RecordCache,
};

/// The range of leases that the service grants: <https://learn.microsoft.com/rest/api/storageservices/lease-blob>. It also grants infinite
/// leases, which would outlast a holder that has died.
const LEASES: std::ops::RangeInclusive<Duration> = Duration::from_secs(15)..=Duration::from_secs(60);

/// The pause before another attempt to open the store.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Opens the store.
///
/// # Errors
/// [`Error::Config`](polylock_core::Error::Config) if the configuration is invalid,
/// [`Error::Unavailable`](polylock_core::Error::Unavailable) if the service can't be reached, does not accept the credentials, or has no
/// such container and the configuration does not allow to create it.
///
/// # Cancel safety
/// Yes. At most the new container is left behind.
pub async fn connect(config: Config) -> Result<Store> {
    polylock_core::io::run(NAME, open(config)).await?
}

#[async_trait]
impl StoreConfig for Config {
    async fn open(&self) -> Result<Store> {
        connect(self.clone()).await
    }

    fn in_namespace(&self, name: &str) -> Option<Arc<dyn StoreConfig>> {
        Some(Arc::new(Self { prefix: name.to_owned(), ..self.clone() }))
    }

    async fn delete_namespaces(&self, names: &[String]) -> Result<()> {
        polylock_core::io::run(NAME, delete(self.clone(), names.to_vec())).await?
    }
}

/// Deletes all blobs of these paths. A lease, which keeps its blob from being deleted, is broken first.
async fn delete(config: Config, names: Vec<String>) -> Result<()> {
    config.check()?;
    let (blobs, timeout) = (Blobs::new(&config)?, config.operation_timeout);
    let deleted = async {
        for name in names {
            let mut pages = pin!(blobs.list(format!("{name}/"), timeout)?);
            while let Some((items, _)) = pages.try_next().await? {
                for blob in items.into_iter().filter_map(|item| item.name) {
                    blobs.break_and_delete(&blob, timeout).await?;
                }
            }
        }
        Ok(())
    };
    deleted.await.map_err(|cause: Cause| cause.at(Operation::Connect, &config.endpoint()))
}

async fn open(config: Config) -> Result<Store> {
    config.check()?;
    let blobs = Blobs::new(&config)?;
    let deadline = SystemClock.now() + config.connect_timeout;
    let mut last = Cause::TimedOut(config.connect_timeout);
    let probed = SystemClock.before(deadline, async {
        loop {
            match probe(&blobs, &config).await {
                Err(cause) if cause.is_temporary() => last = cause,
                outcome => return outcome,
            }
            SystemClock.sleep_until(SystemClock.now() + RETRY_PAUSE).await;
        }
    });
    let probed = probed.await.unwrap_or(Err(last));
    probed.map_err(|cause| cause.at(Operation::Connect, &config.endpoint()))?;
    Ok(store(&config, blobs))
}

/// Checks that the credentials allow to read in the container. Creates it if it is missing.
async fn probe(blobs: &Blobs, config: &Config) -> Result<(), Cause> {
    let any = LockName::new("polylock").unwrap_or_else(|_| unreachable!("a valid name"));
    let timeout = config.operation_timeout;
    blobs.wait_until_allowed(config.connect_timeout).await;
    match blobs.get_state(&any, None, timeout).await {
        Err(cause) => match cause.refusal() {
            Some(Refusal::NoBlob) => Ok(()),
            Some(Refusal::NoContainer) if config.create_container => {
                ignore_exists(blobs.create_container(timeout).await)
            }
            _ => Err(cause),
        },
        Ok(_) => Ok(()),
    }
}

fn store(config: &Config, blobs: Blobs) -> Store {
    let mut capabilities = Capabilities::new(NAME, LEASES);
    capabilities.modes = Modes::ExclusiveOnly;
    capabilities.order = Order::Unordered;
    capabilities.scope = Scope::Network;
    capabilities.first_step = FirstStep::Thread;
    capabilities.queue_lease = QueueLease::Absent;
    capabilities.keep_alive_batch = 1;
    let waiters: Arc<WaiterQueues> = Arc::default();
    config.wake_signal.attach(&waiters);
    let backend = Arc::new(AzureBackend {
        capabilities,
        blobs: Arc::new(blobs),
        attempts: Attempts::default(),
        records: RecordCache::default(),
        waiters,
        fairness: Fairness::default(),
        process: format!("{:016x}", fastrand::u64(..)),
        endpoint: config.endpoint(),
        operation_timeout: config.operation_timeout,
        create_container: config.create_container,
    });
    Store::inspectable(backend.clone()).parking(backend)
}
