//! The connection on which this process receives the grants of its waiters and the names of broken locks.
//!
//! It is trusted once it has received a notification that this process has sent to itself. The test is repeated every few seconds
//! while a task waits: a pooler may swallow notifications, and an idle connection does not notice that its peer is gone. While
//! the connection is not trusted, the store queries the tables instead. Each time it becomes trusted, every waiter claims again,
//! which makes up for missed notifications.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use backon::{BackoffBuilder, ExponentialBuilder};
use polylock_core::{
    Clock, Executor, HoldAlerts, Moment, Operation, RequestId, SystemClock,
    sync::lock,
    wakeups::{Handover, Wakeups},
};
use tokio::task::JoinHandle;

use super::{
    config::Config,
    push::{Notification, PushDriver},
    statements::Statements,
};
use crate::engine::{
    background::Background,
    columns::{Columns, unhex},
    rows::{self, hex},
    server::{
        connection::TRY,
        literal::{Arg, Template},
        pool::Server,
    },
    source::Source,
};

/// The time limit for the first notification from this process to itself.
const FIRST_NOTIFICATION: Duration = Duration::from_secs(2);
/// The interval of such tests while a task waits.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The time from the first grant until a process without waiters listens for breaks: a process that holds a lock only briefly
/// needs no second connection.
const LISTEN_DELAY: Duration = Duration::from_millis(100);
/// The longest pause before the next attempt to connect.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// The number of comparisons between the sessions of the listening connection and of another one. On a busy machine a pooler may lend the same
/// two sessions a few times in a row.
const PROBES: u32 = 10;
/// The payload of a notification that this process sends to itself.
const OWN_PAYLOAD: &str = "0";

/// The listening connection, opened when a task waits or holds a lock for the first time, and kept from then on.
#[derive(Debug)]
pub(super) struct Listener<DB: PushDriver> {
    /// The options of the connection, or `None` if this process does not listen.
    source: Option<Source<DB::Options>>,
    context: Arc<ListenerContext<DB>>,
    task: Mutex<Task>,
    /// The executor of the I/O thread.
    executor: Executor,
}

#[derive(Debug, Default)]
struct Task {
    running: Option<JoinHandle<()>>,
    /// The time of the last test, and the number of own notifications received until then.
    last_check: Option<(Moment, u64)>,
}

#[derive(Debug)]
struct ListenerContext<DB: PushDriver> {
    channel: String,
    /// The channel for breaks, shared by all processes that use the same tables, or tables of the same name in another schema.
    break_channel: String,
    alerts: Arc<HoldAlerts>,
    server: Server<DB>,
    notify: Template,
    self_tests: Background,
    broken: Template,
    checks: Background,
    session: Template,
    /// True once the connection has been requested.
    requested: AtomicBool,
    /// True while the connection is trusted.
    receiving: AtomicBool,
    /// The number of own notifications received.
    own_received: AtomicU64,
}

impl<DB: PushDriver> Drop for Listener<DB> {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().unwrap_or_else(PoisonError::into_inner).running.take() {
            task.abort();
        }
    }
}

impl<DB: PushDriver> Listener<DB> {
    /// Creates it without a connection; `source` has the options of the connection, or `None` if this process does not listen.
    pub(super) fn new(
        config: &Config,
        server: Server<DB>,
        source: Option<Source<DB::Options>>,
        statements: &Statements,
    ) -> Self {
        // A name that no other process has: random, like the id of a request.
        let channel = format!("polylock_{}", hex(&RequestId::random().to_bytes()));
        let context = ListenerContext {
            channel,
            // The prefix is case-insensitive.
            break_channel: format!("{}_breaks", config.common.table.to_ascii_lowercase()),
            alerts: Arc::default(),
            server,
            notify: statements.notify.clone(),
            self_tests: Background::new("could not send a notification to this process"),
            broken: statements.broken.clone(),
            checks: Background::new("could not check for broken locks"),
            session: statements.session.clone(),
            requested: AtomicBool::new(false),
            receiving: AtomicBool::new(false),
            own_received: AtomicU64::new(0),
        };
        Self { source, context: Arc::new(context), task: Mutex::default(), executor: Executor::current() }
    }

    /// Returns the receiver of broken locks, or `None` if this process does not listen.
    pub(super) fn alerts(&self) -> Option<&Arc<HoldAlerts>> {
        self.source.is_some().then_some(&self.context.alerts)
    }

    /// Returns the channel on which the processes of holders listen for breaks.
    pub(super) fn break_channel(&self) -> &str {
        &self.context.break_channel
    }

    /// Starts listening after [`LISTEN_DELAY`], for a process that holds a lock.
    pub(super) fn listen_soon(&self, wakeups: &Arc<Wakeups>) {
        let Some(source) = &self.source else { return };
        if self.context.requested.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut task = lock(&self.task);
        if task.running.is_none() {
            let listening = listen(source.clone(), self.context.clone(), wakeups.clone());
            task.running = Some(self.executor.spawn(async move {
                SystemClock.sleep_until(SystemClock.now() + LISTEN_DELAY).await;
                listening.await;
            }));
        }
    }

    /// Returns the channel on which the waiters of this process receive their grants.
    pub(super) fn channel(&self) -> &str {
        &self.context.channel
    }

    /// Returns true if notifications arrive. Starts listening if that has not happened yet, and replaces a connection that no
    /// longer receives.
    pub(super) async fn ensure_receiving(&self, wakeups: &Arc<Wakeups>) -> bool {
        let Some(source) = &self.source else { return false };
        let due = {
            let mut task = lock(&self.task);
            let (now, received) = (SystemClock.now(), self.context.own_received.load(Ordering::Acquire));
            let is_stale = match task.last_check {
                // Trusted, tested, and nothing received since.
                Some((when, before)) => {
                    now.since(when) >= CHECK_INTERVAL && received == before && self.context.is_receiving()
                }
                None => false,
            };
            if is_stale {
                tracing::warn!(server = %self.context.server.endpoint(), "the listening connection receives no notifications: opening another");
                self.context.receiving.store(false, Ordering::Release);
                if let Some(running) = task.running.take() {
                    running.abort();
                }
            }
            if task.running.as_ref().is_none_or(JoinHandle::is_finished) {
                let listening = listen(source.clone(), self.context.clone(), wakeups.clone());
                task.running = Some(self.executor.spawn(listening));
                self.context.requested.store(true, Ordering::Release);
            }
            let due = task.last_check.is_none_or(|(when, _)| now.since(when) >= CHECK_INTERVAL);
            if due {
                task.last_check = Some((now, received));
            }
            due && self.context.is_receiving()
        };
        if due {
            // A failure needs no handling here: the next check finds that no notification has arrived.
            self.context.notify_self().await;
        }
        self.context.is_receiving()
    }
}

impl<DB: PushDriver> ListenerContext<DB> {
    fn is_receiving(&self) -> bool {
        self.receiving.load(Ordering::Acquire)
    }

    /// Sends a notification to the listening connection, over a connection of the pool.
    async fn notify_self(&self) {
        let arguments = [Arg::Text(&self.channel)];
        match self.server.query(Operation::Wait, &self.notify, &arguments, |_| Ok(())).await {
            Ok(()) => self.self_tests.succeeded(),
            Err(error) => self.self_tests.failed(&error),
        }
    }

    fn on_notification(&self, Notification { channel, payload }: &Notification, wakeups: &Wakeups) {
        if *channel == self.break_channel {
            // A payload that is not a lock name was not sent by polylock.
            let name = unhex(0, payload).ok().and_then(rows::name);
            if let Some(name) = name {
                self.alerts.check(&name);
            }
            return;
        }
        if payload == OWN_PAYLOAD {
            self.own_received.fetch_add(1, Ordering::AcqRel);
            return;
        }
        match Handover::parse(payload) {
            Some(handover) => wakeups.deliver(handover),
            // Not a grant; it is always safe to wake every waiter.
            None => wakeups.notify_all(),
        }
    }

    /// Checks the locks that were broken while this process did not listen.
    async fn find_broken(&self) {
        let names = self.server.query(Operation::Wait, &self.broken, &[], |rows| {
            rows.iter().map(|row| row.bytes(0)).collect::<Result<Vec<_>, _>>()
        });
        match names.await {
            Ok(names) => {
                self.checks.succeeded();
                names.into_iter().filter_map(rows::name).for_each(|name| self.alerts.check(&name));
            }
            // Their holders find it at the next renewal.
            Err(error) => self.checks.failed(&error),
        }
    }

    /// Waits for a reply on the listening connection. Without a time limit, this process would poll for ever if the server has gone without
    /// ending the connection.
    async fn reply<T>(&self, reply: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, sqlx::Error> {
        let reply = SystemClock.before(SystemClock.now() + self.server.timeout, reply).await;
        reply.unwrap_or_else(|| Err(sqlx::Error::Protocol("no reply on the listening connection".into())))
    }

    /// Returns true if a pooler assigns a session to each transaction: then two connections that are open at the same time are in
    /// one session, or one of them is in two sessions. A `LISTEN` would remain in a session that the pooler lends to other
    /// programs. They would receive the notifications, which some drivers report as a broken connection.
    async fn shares_sessions(&self, listener: &mut DB::Listener) -> Result<bool, sqlx::Error> {
        let session = self.session.with::<DB>(&[]);
        let mut known = None;
        for _ in 0..PROBES {
            let rows = self.reply(<DB as PushDriver>::fetch(listener, session.clone())).await?;
            let own = rows.first().map_or(Ok(None), |row| row.int(0))?;
            let other = self.server.query(Operation::Wait, &self.session, &[], |rows| {
                rows.first().map_or(Ok(None), |row| row.int(0))
            });
            let other = other.await.unwrap_or(None);
            if own == other || known.replace(own).is_some_and(|before| before != own) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Listens until the connection is lost. The error states the cause.
    async fn session(&self, source: &Source<DB::Options>, wakeups: &Wakeups) -> Result<(), sqlx::Error> {
        let mut listener = DB::listener(source.next().await?, self.server.timeout).await?;
        if self.shares_sessions(&mut listener).await? {
            return Err(sqlx::Error::Protocol("a pooler assigns a session to each transaction".into()));
        }
        self.reply(DB::listen(&mut listener, [self.channel.as_str(), self.break_channel.as_str()])).await?;
        let before = self.own_received.load(Ordering::Acquire);
        self.notify_self().await;
        // Other notifications do not prolong it: if its own one was lost, this connection would never be trusted.
        let until = SystemClock.now() + FIRST_NOTIFICATION;
        while self.own_received.load(Ordering::Acquire) == before {
            let notification = SystemClock.before(until, DB::next(&mut listener)).await;
            let notification =
                notification.ok_or_else(|| sqlx::Error::Protocol("notifications do not arrive".into()))?;
            self.on_notification(&notification?.ok_or(sqlx::Error::WorkerCrashed)?, wakeups);
        }
        self.receiving.store(true, Ordering::Release);
        // Earlier notifications are not repeated, so every waiter claims again.
        wakeups.notify_all();
        self.find_broken().await;
        self.receive(&mut listener, wakeups).await
    }

    /// Receives notifications until the connection is lost. It sends nothing for as long as it waits, so a server or a proxy may close it as
    /// idle: then the next one is kept open.
    async fn receive(&self, listener: &mut DB::Listener, wakeups: &Wakeups) -> Result<(), sqlx::Error> {
        let (idle, mut sent) = (self.server.idle_time(), SystemClock.now());
        loop {
            let suspect = idle.suspect().map_or(Moment::NEVER, |suspect| sent + suspect);
            let end = match SystemClock.before(suspect, DB::next(listener)).await {
                Some(Ok(Some(notification))) => {
                    self.on_notification(&notification, wakeups);
                    continue;
                }
                Some(end) => end.map(drop),
                None => match self.reply(<DB as PushDriver>::fetch(listener, TRY)).await {
                    Ok(_) => {
                        idle.found_open(SystemClock.now().since(sent));
                        sent = SystemClock.now();
                        continue;
                    }
                    Err(error) => Err(error),
                },
            };
            idle.found_closed(SystemClock.now().since(sent));
            return end;
        }
    }
}

async fn listen<DB: PushDriver>(
    source: Source<DB::Options>,
    context: Arc<ListenerContext<DB>>,
    wakeups: Arc<Wakeups>,
) {
    let pauses = || {
        let pauses = ExponentialBuilder::default().with_min_delay(Duration::from_millis(50));
        pauses.with_max_delay(MAX_PAUSE).without_max_times().with_jitter().build()
    };
    let mut next = pauses();
    let mut warned = false;
    loop {
        let end = context.session(&source, &wakeups).await;
        if context.receiving.swap(false, Ordering::AcqRel) {
            // The connection was trusted: notifications may have been lost, and the next attempt need not wait.
            wakeups.notify_all();
            next = pauses();
        }
        let reason =
            end.err().map_or_else(|| "the connection was lost".to_owned(), |error| error.to_string());
        if warned {
            tracing::debug!(reason, "not listening");
        } else {
            warned = true;
            tracing::info!(
                server = %context.server.endpoint(), reason,
                "not listening: polling instead (if this persists and a pooler is in between, set polylock.listen to off \
                 or to the URL of the server itself)"
            );
        }
        let pause = next.next().unwrap_or(MAX_PAUSE);
        SystemClock.sleep_until(SystemClock.now() + pause).await;
    }
}
