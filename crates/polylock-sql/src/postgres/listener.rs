//! The one connection on which this process receives grants for its waiters, and the names of locks that were broken.
//!
//! It is believed only after it has heard its own voice, and is asked for it again every few seconds while somebody
//! waits: a pooler may swallow notifications, and a connection that nobody sends on does not notice that the other end is
//! gone. While it is not believed, the store asks the tables instead. Whenever it comes up, everybody claims once more, so
//! what was missed before is made up for.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use backon::{BackoffBuilder, ExponentialBuilder};
use polylock_core::{
    Clock, HoldAlerts, Moment, Operation, RequestId, SystemClock,
    hub::{Handed, Hub},
};
use sqlx::{
    Postgres,
    postgres::{PgConnectOptions, PgListener, PgNotification, PgPoolOptions},
};
use tokio::task::JoinHandle;

use super::{
    config::{Config, Listen},
    statements::Statements,
};
use crate::engine::{
    background::Background,
    literal::{Arg, Template},
    pool::Server,
    rows::{self, Columns, hex, unhex},
    source::Source,
};

/// How long its own voice may take.
const PROOF: Duration = Duration::from_secs(2);
/// How often it is asked for it while somebody waits.
const CHECK: Duration = Duration::from_secs(5);
/// How long after the first grant a process without waiters listens for breaks: one that only takes a lock for a moment does
/// without another connection.
const SOON: Duration = Duration::from_millis(100);
/// The longest pause before another try.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How often the sessions of the listening connection and of another one are compared.
const PROBES: u32 = 3;
/// What it says to itself.
const OWN_VOICE: &str = "0";

/// The listening connection, which is made when somebody waits, or holds a lock, for the first time, and kept from then on.
#[derive(Debug)]
pub(super) struct Listener {
    /// How to reach the server, or `None` if nobody is to listen.
    source: Option<Source<PgConnectOptions>>,
    shared: Arc<Shared>,
    task: Mutex<Task>,
}

#[derive(Debug, Default)]
struct Task {
    running: Option<JoinHandle<()>>,
    /// When it was last asked to speak, and how often it had been heard until then.
    asked: Option<(Moment, u64)>,
}

#[derive(Debug)]
struct Shared {
    channel: String,
    /// One for all processes that use the same tables, or others of the same name in another schema.
    break_channel: String,
    alerts: Arc<HoldAlerts>,
    server: Arc<Server<Postgres>>,
    notify: Template,
    notifying: Background,
    broken: Template,
    looking: Background,
    session: Template,
    /// Whether the connection has been asked for.
    wanted: AtomicBool,
    /// Whether it is believed.
    hears: AtomicBool,
    /// How often it heard its own voice.
    heard: AtomicU64,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().unwrap_or_else(PoisonError::into_inner).running.take() {
            task.abort();
        }
    }
}

impl Listener {
    pub(super) fn new(config: &Config, server: Arc<Server<Postgres>>, statements: &Statements) -> Self {
        let source = match &config.listen {
            Listen::Auto => Some(config.source.clone()),
            Listen::Off => None,
            Listen::At(options) => Some(config.source.at(PgConnectOptions::clone(options))),
        };
        // Any name that no other process has; random, like a request's.
        let channel = format!("polylock_{}", hex(&RequestId::random().to_bytes()));
        let shared = Shared {
            channel,
            // Capitals in a prefix do not count.
            break_channel: format!("{}_breaks", config.common.table.to_ascii_lowercase()),
            alerts: Arc::default(),
            server,
            notify: statements.notify.clone(),
            notifying: Background::new("could not send this process a notification"),
            broken: statements.broken.clone(),
            looking: Background::new("could not look for locks that were broken"),
            session: statements.session.clone(),
            wanted: AtomicBool::new(false),
            hears: AtomicBool::new(false),
            heard: AtomicU64::new(0),
        };
        Self { source, shared: Arc::new(shared), task: Mutex::default() }
    }

    /// What receives the locks that were broken, if anything listens.
    pub(super) fn alerts(&self) -> Option<&Arc<HoldAlerts>> {
        self.source.is_some().then_some(&self.shared.alerts)
    }

    /// Where the processes of holders listen for breaks.
    pub(super) fn break_channel(&self) -> &str {
        &self.shared.break_channel
    }

    /// Starts listening in a moment, for a process that holds a lock.
    pub(super) fn listen_soon(&self, hub: &Arc<Hub>) {
        let Some(source) = &self.source else { return };
        if self.shared.wanted.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.running.is_none() {
            let listening = listen(source.clone(), self.shared.clone(), hub.clone());
            task.running = Some(tokio::spawn(async move {
                SystemClock.sleep_until(SystemClock.now() + SOON).await;
                listening.await;
            }));
        }
    }

    /// Where the waiters of this process want to hear of it.
    pub(super) fn channel(&self) -> &str {
        &self.shared.channel
    }

    /// Whether notifications come in. Starts listening if nobody has, and gives up a connection that has become deaf.
    pub(super) async fn hears(&self, hub: &Arc<Hub>) -> bool {
        let Some(source) = &self.source else { return false };
        let ask = {
            let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
            let (now, heard) = (SystemClock.now(), self.shared.heard.load(Ordering::Acquire));
            let deaf = match task.asked {
                // Believed, asked, and silent ever since.
                Some((when, before)) => now.since(when) >= CHECK && heard == before && self.shared.hears(),
                None => false,
            };
            if deaf {
                tracing::warn!(server = %self.shared.server.place, "the listening connection is deaf: making another");
                self.shared.hears.store(false, Ordering::Release);
                if let Some(running) = task.running.take() {
                    running.abort();
                }
            }
            if task.running.as_ref().is_none_or(JoinHandle::is_finished) {
                let listening = listen(source.clone(), self.shared.clone(), hub.clone());
                task.running = Some(tokio::spawn(listening));
                self.shared.wanted.store(true, Ordering::Release);
            }
            let due = task.asked.is_none_or(|(when, _)| now.since(when) >= CHECK);
            if due {
                task.asked = Some((now, heard));
            }
            due && self.shared.hears()
        };
        if ask {
            // If it fails, the silence tells.
            self.shared.speak().await;
        }
        self.shared.hears()
    }
}

impl Shared {
    fn hears(&self) -> bool {
        self.hears.load(Ordering::Acquire)
    }

    /// Has the listening connection hear its own voice, over a connection of the pool.
    async fn speak(&self) {
        let arguments = [Arg::Text(&self.channel)];
        match self.server.ask(Operation::Wait, &self.notify, &arguments, |_| Ok(())).await {
            Ok(()) => self.notifying.succeeded(),
            Err(error) => self.notifying.failed(&error),
        }
    }

    fn on(&self, notification: &PgNotification, hub: &Hub) {
        if notification.channel() == self.break_channel {
            // What is no name is not polylock's.
            let name = unhex(0, notification.payload()).ok().and_then(rows::name);
            if let Some(name) = name {
                self.alerts.check(&name);
            }
            return;
        }
        if notification.payload() == OWN_VOICE {
            self.heard.fetch_add(1, Ordering::AcqRel);
            return;
        }
        match Handed::parse(notification.payload()) {
            Some(handed) => hub.hand_over(handed),
            // Nothing of ours; waking everybody is allowed at any time.
            None => hub.ring_all(),
        }
    }

    /// Checks the locks that were broken while nothing was received.
    async fn find_broken(&self) {
        let names = self.server.ask(Operation::Wait, &self.broken, &[], |rows| {
            rows.iter().map(|row| row.bytes(0)).collect::<Result<Vec<_>, _>>()
        });
        match names.await {
            Ok(names) => {
                self.looking.succeeded();
                names.into_iter().filter_map(rows::name).for_each(|name| self.alerts.check(&name));
            }
            // Their next renewals find it.
            Err(error) => self.looking.failed(&error),
        }
    }

    /// Whether a pooler gives each transaction another session: two connections that are open at the same time are in one
    /// session, or one of them is in two. A `LISTEN` would stay in a session that other programs get, and would send them
    /// notifications, which some drivers take for a broken connection.
    async fn shares_sessions(&self, listener: &mut PgListener) -> Result<bool, sqlx::Error> {
        let session = self.session.with::<Postgres>(&[]);
        let mut known = None;
        for _ in 0..PROBES {
            let rows = sqlx::raw_sql(session.clone()).fetch_all(&mut *listener).await?;
            let own = rows.first().map_or(Ok(None), |row| row.int(0))?;
            let other = self.server.ask(Operation::Wait, &self.session, &[], |rows| {
                rows.first().map_or(Ok(None), |row| row.int(0))
            });
            let other = other.await.unwrap_or(None);
            if own == other || known.replace(own).is_some_and(|before| before != own) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Listens until the connection is lost; the error says how.
    async fn session(&self, source: &Source<PgConnectOptions>, hub: &Hub) -> Result<(), sqlx::Error> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(self.server.patience)
            .connect_lazy_with(source.next().await?);
        let mut listener = PgListener::connect_with(&pool).await?;
        if self.shares_sessions(&mut listener).await? {
            return Err(sqlx::Error::Protocol("a pooler gives each transaction another session".into()));
        }
        listener.listen_all([self.channel.as_str(), self.break_channel.as_str()]).await?;
        let before = self.heard.load(Ordering::Acquire);
        self.speak().await;
        while self.heard.load(Ordering::Acquire) == before {
            let heard = tokio::time::timeout(PROOF, listener.try_recv()).await;
            let heard =
                heard.map_err(|_| sqlx::Error::Protocol("notifications do not come through".into()))?;
            self.on(&heard?.ok_or(sqlx::Error::WorkerCrashed)?, hub);
        }
        self.hears.store(true, Ordering::Release);
        // Who left before is not told again.
        hub.ring_all();
        self.find_broken().await;
        while let Some(notification) = listener.try_recv().await? {
            self.on(&notification, hub);
        }
        Ok(())
    }
}

async fn listen(source: Source<PgConnectOptions>, shared: Arc<Shared>, hub: Arc<Hub>) {
    let pauses = || {
        let pauses = ExponentialBuilder::default().with_min_delay(Duration::from_millis(50));
        pauses.with_max_delay(LONGEST_PAUSE).without_max_times().with_jitter().build()
    };
    let mut next = pauses();
    let mut told = false;
    loop {
        let end = shared.session(&source, &hub).await;
        if shared.hears.swap(false, Ordering::AcqRel) {
            // It was well: what was under way is lost, and the next try may be at once.
            hub.ring_all();
            next = pauses();
        }
        let reason =
            end.err().map_or_else(|| "the connection was lost".to_owned(), |error| error.to_string());
        if told {
            tracing::debug!(reason, "not listening");
        } else {
            told = true;
            tracing::info!(
                server = %shared.server.place, reason,
                "not listening: asking instead (if this lasts and a pooler stands between, set polylock.listen to off \
                 or to the URL of the server itself)"
            );
        }
        let pause = next.next().unwrap_or(LONGEST_PAUSE);
        SystemClock.sleep_until(SystemClock.now() + pause).await;
    }
}
