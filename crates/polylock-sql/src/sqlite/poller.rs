//! How waiters learn of what other processes do: one poller per store, only while somebody waits.
//!
//! Each round asks for SQLite's `data_version`, a number in shared memory that changes with every commit, and only if it
//! has changed looks which of those that are waited for have left. Rounds are 1 ms apart after a find, 2 ms while
//! anything happens in the file, because the turn may come round soon, and slow down to 20 ms when nothing does.
//!
//! No departure is missed:
//! 1. a claim reads in a transaction that somebody is in its way, then says so to the hub, then marks the poller as
//!    having to look;
//! 2. a round takes the mark and the version first and looks afterwards;
//! 3. so whoever leaves after 1 changes the version, and whoever was put into the hub after a look is looked after by
//!    the next round, whose snapshot is later than the claim's.

use std::{
    fmt::Write,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use polylock_core::{Clock, Operation, Request, RequestId, Result, SystemClock, hub::Hub};
use sqlx::{Arguments, Row, sqlite::SqliteArguments};
use tokio::task::JoinHandle;

use super::{
    backend::{Shared, all_requests},
    connection::{Answer, Lane, Sql},
    error,
};

/// The pause after a find.
const SHORTEST: Duration = Duration::from_millis(1);
/// The pause while anything happens: a queue of processes moves on this fast.
const LIVELY: Duration = Duration::from_millis(2);
/// The pause in the end, and so the most that a hand-over between processes waits for a round.
const LONGEST: Duration = Duration::from_millis(20);
/// The least pause, as a multiple of what the round took: the poller uses no more of a core than one part in so many.
const SHARE: u32 = 8;
/// The pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_millis(250);

/// What a round found.
enum Round {
    /// Nothing has happened.
    Quiet,
    /// Something has, but those who are waited for are all there.
    Lively,
    /// Someone who is waited for has left.
    Departure,
}

/// The bell of the store, and who rings it for foreign departures.
#[derive(Debug, Default)]
pub(super) struct Poller {
    pub(super) hub: Hub,
    /// Whether someone waits who was not looked after yet.
    news: AtomicBool,
    running: Mutex<Option<JoinHandle<()>>>,
}

impl Shared {
    /// `request` waits for `watched`, wherever that is.
    pub(super) fn expect(self: &Arc<Self>, request: &Request, watched: RequestId) {
        self.poller.hub.expect(request, watched);
        self.poller.news.store(true, Ordering::Release);
        let mut running = self.poller.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.as_ref().is_none_or(JoinHandle::is_finished) {
            *running = Some(tokio::spawn(poll(Arc::downgrade(self))));
        }
    }

    /// Whether nobody waits, so that the poller ends. Who waits from now on starts a new one.
    fn rests(&self) -> bool {
        let mut running = self.poller.running.lock().unwrap_or_else(PoisonError::into_inner);
        let rests = self.poller.hub.is_empty();
        if rests {
            *running = None;
        }
        rests
    }

    /// One round.
    async fn round(&self, seen: &mut Option<(u64, i64)>) -> Result<Round> {
        let news = self.poller.news.swap(false, Ordering::Acquire);
        let version = self.version().await?;
        if !news && *seen == Some(version) {
            return Ok(Round::Quiet);
        }
        let mut arguments = SqliteArguments::default();
        let failed = |failure| error::driver(Operation::Wait, &self.connections.path, failure);
        arguments.add(self.watched()).map_err(|failure| failed(sqlx::Error::Encode(failure)))?;
        let sql = &self.statements.gone;
        let gone = self.rows(Lane::Reading, Operation::Wait, sql, arguments, all_requests).await?;
        *seen = Some(version);
        gone.iter().for_each(|gone| self.poller.hub.ring(*gone));
        Ok(if gone.is_empty() { Round::Lively } else { Round::Departure })
    }

    /// Who is waited for, as `gone.sql` wants it.
    fn watched(&self) -> String {
        let mut pairs = String::from("[");
        for (name, requests) in self.poller.hub.watched() {
            let name = hex(name.as_str().as_bytes());
            for request in requests {
                let comma = if pairs.len() > 1 { "," } else { "" };
                write!(pairs, "{comma}[\"{name}\",\"{}\"]", hex(&request.to_bytes())).ok();
            }
        }
        pairs.push(']');
        pairs
    }

    /// What changes with every foreign commit: the number, and the connection that counts it.
    async fn version(&self) -> Result<(u64, i64)> {
        let read = |answer: Answer| {
            let version = answer.rows.first().map_or(Ok(0), |row| row.try_get(0));
            let version =
                version.map_err(|failure| error::driver(Operation::Wait, &self.connections.path, failure))?;
            Ok((answer.openings, version))
        };
        let sql = &self.statements.data_version;
        self.connections
            .run(Lane::Reading, Operation::Wait, Sql::Asks(sql), SqliteArguments::default(), read)
            .await
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let running = self.poller.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(poller) = running.take() {
            poller.abort();
        }
    }
}

async fn poll(store: Weak<Shared>) {
    let (mut pause, mut seen) = (SHORTEST, None);
    loop {
        SystemClock.sleep_until(SystemClock.now() + pause).await;
        let Some(store) = store.upgrade() else { return };
        if store.rests() {
            return;
        }
        let began = SystemClock.now();
        pause = match store.round(&mut seen).await {
            Ok(Round::Departure) => SHORTEST,
            Ok(Round::Lively) => LIVELY,
            Ok(Round::Quiet) => (pause * 2).min(LONGEST),
            Err(failure) => {
                // Let the waiters claim, who will meet the fault themselves or find it mended.
                tracing::debug!(error = %failure, "could not look for releases of other processes");
                store.poller.hub.ring_all();
                seen = None;
                AFTER_FAILURE
            }
        };
        // A long look, because hundreds wait, is taken less often.
        pause = pause.max(SystemClock.now().since(began) * SHARE);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").ok();
        text
    })
}
