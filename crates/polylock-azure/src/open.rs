//! Opening the store: the container, and whether we may use it.

use std::{sync::Arc, time::Duration};

use polylock_core::{
    Capabilities, Clock, FirstStep, LockName, Modes, Operation, Order, QueueLease, Reach, Result, Store,
    SystemClock, line::Line,
};

use crate::{
    NAME,
    attempts::Attempts,
    backend::{Leases, made},
    blobs::Blobs,
    config::Config,
    error::{Refusal, Trouble},
    tokens::Remembered,
    turns::Turns,
};

/// What the service gives: <https://learn.microsoft.com/rest/api/storageservices/lease-blob>. It would give one without an end,
/// too, which nobody gets rid of when its holder has died.
const LEASES: std::ops::RangeInclusive<Duration> = Duration::from_secs(15)..=Duration::from_secs(60);

/// The pause before opening is tried again.
const PAUSE: Duration = Duration::from_millis(250);

/// Opens the store.
///
/// # Errors
/// [`Error::Config`](polylock_core::Error::Config) if the configuration makes no sense,
/// [`Error::Unavailable`](polylock_core::Error::Unavailable) if the service can't be reached, does not accept the credentials,
/// or has no such container and it is not to be made.
///
/// # Cancel safety
/// Yes: nothing is left behind but perhaps the container.
pub async fn connect(config: Config) -> Result<Store> {
    polylock_core::io::run(NAME, open(config)).await?
}

async fn open(config: Config) -> Result<Store> {
    config.check()?;
    let blobs = Blobs::new(&config)?;
    let deadline = SystemClock.now() + config.connect_timeout;
    let mut last = Trouble::Silent(config.connect_timeout);
    while let Some(answer) = SystemClock.before(deadline, probe(&blobs, &config)).await {
        match answer {
            Ok(()) => return Ok(store(&config, blobs)),
            Err(trouble) if trouble.is_temporary() => last = trouble,
            Err(trouble) => return Err(trouble.at(Operation::Connect, &config.place())),
        }
        if SystemClock.before(deadline, SystemClock.sleep_until(SystemClock.now() + PAUSE)).await.is_none() {
            break;
        }
    }
    Err(last.at(Operation::Connect, &config.place()))
}

/// Whether we may read in the container, which is made if it is missing.
async fn probe(blobs: &Blobs, config: &Config) -> Result<(), Trouble> {
    let any = LockName::new("polylock").unwrap_or_else(|_| unreachable!("it is one"));
    let patience = config.request_timeout;
    blobs.calm(config.connect_timeout).await;
    match blobs.look(&any, None, patience).await {
        Err(trouble) => match trouble.refusal() {
            Some(Refusal::NoBlob) => Ok(()),
            Some(Refusal::NoContainer) if config.create_container => {
                made(blobs.make_container(patience).await)
            }
            _ => Err(trouble),
        },
        Ok(_) => Ok(()),
    }
}

fn store(config: &Config, blobs: Blobs) -> Store {
    let mut capabilities = Capabilities::new(NAME, LEASES);
    capabilities.modes = Modes::ExclusiveOnly;
    capabilities.order = Order::Unordered;
    capabilities.reach = Reach::Machines;
    capabilities.first_step = FirstStep::Thread;
    capabilities.queue_lease = QueueLease::Absent;
    capabilities.keep_alive_batch = 1;
    let waiters: Arc<Line> = Arc::default();
    config.bell.hangs_at(&waiters);
    Store::inspectable(Arc::new(Leases {
        capabilities,
        blobs: Arc::new(blobs),
        attempts: Attempts::default(),
        remembered: Remembered::default(),
        waiters,
        turns: Turns::default(),
        mark: format!("{:016x}", fastrand::u64(..)),
        place: config.place(),
        request_timeout: config.request_timeout,
        create_container: config.create_container,
    }))
}
