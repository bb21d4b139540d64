//! The server: its connections and its clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::{Arc, Mutex, MutexGuard, Weak},
};

use fastrand::Rng;
use polylock_core::sync::lock;
use polylock_sql::simulation::{END, Row, Value, encode, encode_notification};

use super::{
    mysql, postgres, rows,
    statement::{Argument, Call},
    tables::{Database, Payload, text},
};
use crate::simulation::{
    clock::WallClock,
    listener::{Listener, Stop},
    plan::{Planted, StoreKind},
    servers::Life,
    socket::{Acceptor, Connection, Segment},
    time::Time,
    timeline::Timeline,
};

/// The server.
#[derive(Debug)]
pub struct Node {
    this: Weak<Self>,
    time: Arc<Time>,
    /// Its clock.
    pub clock: WallClock,
    timeline: Arc<Timeline>,
    is_postgres: bool,
    /// The last release of each request.
    releases: Mutex<BTreeMap<Vec<u8>, LastRelease>>,
    /// For each process, its first and its last query for grants without an interruption: it does not listen.
    polls: Mutex<BTreeMap<Life, (u64, u64)>>,
    /// The tokens of the grants that were sent to a process that listens.
    pushed: Mutex<BTreeSet<i64>>,
    state: Mutex<State>,
}

/// The statement that tells whether a connection is open.
const TRY: &str = "SELECT 1";

/// The time after a query for grants from which the next one is not its continuation, in nanoseconds.
const INTERRUPTION: u64 = 1_000_000_000;

/// The last release of a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct LastRelease {
    /// The time at which it was sent.
    pub sent: u64,
    /// The time at which the last one was executed, if any was.
    pub executed: u64,
}

#[derive(Debug)]
struct State {
    random: Rng,
    listener: Listener,
    is_paused: bool,
    /// The statements that have waited, and are to be ended after a pause.
    waited: Vec<Waiting>,
    /// The channels on which connections listen.
    channels: BTreeMap<u64, BTreeSet<String>>,
    database: Database,
}

/// A statement that waits for a change in the queues.
#[derive(Debug)]
struct Waiting {
    connection: u64,
    process: usize,
    batch: Vec<u8>,
    nearest: i64,
}

impl Node {
    /// Creates a server that is up, with empty tables.
    #[must_use]
    pub fn new(
        clock: WallClock,
        (store, planted): (StoreKind, Option<Planted>),
        (time, timeline): (Arc<Time>, Arc<Timeline>),
        random: Rng,
    ) -> Arc<Self> {
        let state = State {
            random,
            listener: Listener::default(),
            is_paused: false,
            waited: Vec::new(),
            channels: BTreeMap::new(),
            database: Database::new(store, planted),
        };
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            time,
            clock,
            timeline,
            is_postgres: store == StoreKind::Postgres,
            releases: Mutex::default(),
            polls: Mutex::default(),
            pushed: Mutex::default(),
            state: Mutex::new(state),
        })
    }

    /// Calls `look` with the tables at the present time.
    pub fn inspect<T>(&self, look: impl FnOnce(&Database) -> T) -> T {
        let mut state = self.lock();
        state.database.now_us = self.clock.now_us();
        look(&state.database)
    }

    /// Returns the last release of each request.
    #[must_use]
    pub fn releases(&self) -> BTreeMap<Vec<u8>, LastRelease> {
        lock(&self.releases).clone()
    }

    fn record_release(&self, call: &Call<'_>, time: fn(&mut LastRelease) -> &mut u64) {
        if let Some(request) = call.released() {
            let mut releases = lock(&self.releases);
            *time(releases.entry(request.to_vec()).or_default()) = self.time.now();
        }
    }

    /// Returns the processes that have queried for grants, with the times of the first and the last query without an interruption.
    #[must_use]
    pub fn polls(&self) -> BTreeMap<Life, (u64, u64)> {
        lock(&self.polls).clone()
    }

    /// Returns the tokens of the grants that were sent to a process that listens.
    #[must_use]
    pub fn pushed(&self) -> BTreeSet<i64> {
        lock(&self.pushed).clone()
    }

    fn record_poll(&self, process: Life) {
        let (now, mut polls) = (self.time.now(), lock(&self.polls));
        let (since, last) = polls.entry(process).or_insert((now, now));
        if now - *last > INTERRUPTION {
            *since = now;
        }
        *last = now;
    }

    fn parse<'a>(&self, statement: &'a str) -> Option<Call<'a>> {
        match statement {
            TRY => Some(Call { routine: TRY, arguments: Vec::new() }),
            _ if self.is_postgres => postgres::parse(statement),
            _ => mysql::parse(statement),
        }
    }

    /// Executes the statements that have arrived on `connection`, and sends the replies.
    fn read(&self, state: &mut State, connection: &Connection) {
        let number = connection.number;
        while let Some(statement) = state.listener.input(number).and_then(take_message) {
            let Some(call) = self.parse(&statement) else { unreachable!("{statement}") };
            self.record_release(&call, |release| &mut release.executed);
            state.database.now_us = self.clock.now_us();
            let process = connection.process.0;
            if call.routine == "handed" {
                self.record_poll(connection.process);
            }
            if let ("watch", [batch, _, length]) = (call.routine, &call.arguments[..]) {
                let watched = mysql::watch(&mut state.database, batch.bytes());
                if !watched.is_final() && length.int() > 0 {
                    let nearest = watched.nearest;
                    let waiting =
                        Waiting { connection: number, process, batch: batch.bytes().to_vec(), nearest };
                    let (this, length) = (self.this.clone(), length.int().cast_unsigned() * 1000);
                    self.time.at(self.time.now() + length, move || {
                        this.upgrade().into_iter().for_each(|node| node.wake(&waiting));
                    });
                    continue;
                }
                self.reply(state, (number, process), "watch", &[], &[watched.row(None)]);
                continue;
            }
            let Some(rows) = self.execute(state, number, &call) else { unreachable!("{statement}") };
            self.reply(state, (number, process), call.routine, &call.arguments, &rows);
            self.notify(state);
        }
    }

    /// Executes a call that is not a watch. Returns its rows; `None` if there is no such routine.
    fn execute(&self, state: &mut State, connection: u64, call: &Call<'_>) -> Option<Vec<Row>> {
        match (call.routine, &call.arguments[..]) {
            ("listen", channels) => {
                let channels = channels.iter().map(|channel| text(channel.bytes()));
                state.channels.entry(connection).or_default().extend(channels);
                Some(Vec::new())
            }
            (TRY, _) => Some(Vec::new()),
            ("session", _) => Some(vec![Row(vec![Value::Int(connection.cast_signed())])]),
            _ if self.is_postgres => postgres::execute(&mut state.database, call),
            _ => mysql::execute(&mut state.database, call),
        }
    }

    /// Sends the notifications of a call that is committed. A connection that has ended listens no more.
    fn notify(&self, state: &mut State) {
        let State { listener, channels, database, .. } = state;
        channels.retain(|connection, _| listener.input(*connection).is_some());
        for (channel, payload) in mem::take(&mut database.notifications) {
            let (text, token) = match payload {
                Payload::Grant(numbers) => {
                    (numbers.map(|number| number.to_string()).join(" "), Some(numbers[2]))
                }
                Payload::Other(text) => (text, None),
            };
            let listening = channels.iter().filter(|(_, channels)| channels.contains(&channel));
            let listening: Vec<u64> = listening.map(|(connection, _)| *connection).collect();
            self.timeline.note("server", || {
                format!("notifies {channel} of {text}: {} connections listen", listening.len())
            });
            if let (Some(token), false) = (token, listening.is_empty()) {
                lock(&self.pushed).insert(token);
                if database.has(&[Planted::PostgresLostNotification]) {
                    continue;
                }
            }
            for connection in listening {
                listener.send(connection, encode_notification(&channel, &text));
            }
        }
    }

    fn reply(
        &self,
        state: &State,
        (connection, process): (u64, usize),
        routine: &str,
        arguments: &[Argument],
        rows: &[Row],
    ) {
        self.timeline.note("server", || {
            let (arguments, rows) = (rows::shown(arguments), rows::shown_rows(rows));
            format!("p{process} {routine} {arguments}: {rows}")
        });
        state.listener.send(connection, encode(rows));
    }

    /// Ends a statement that has waited.
    fn wake(&self, waiting: &Waiting) {
        let mut state = self.lock();
        let Waiting { connection, process, batch, nearest } = waiting;
        if state.is_paused {
            let (batch, nearest) = (batch.clone(), *nearest);
            state.waited.push(Waiting { connection: *connection, process: *process, batch, nearest });
        } else if state.listener.input(*connection).is_some() {
            state.database.now_us = self.clock.now_us();
            let row = mysql::watch(&mut state.database, batch).row(Some(*nearest));
            self.reply(&state, (*connection, *process), "watch", &[], &[row]);
        }
    }

    /// Stops the server.
    pub fn pause(&self) {
        let mut state = self.lock();
        state.is_paused = true;
        state.listener.pause();
    }

    /// Continues, and executes the statements that have arrived.
    pub fn resume(&self) {
        let (waited, arrived) = {
            let mut state = self.lock();
            state.is_paused = false;
            (mem::take(&mut state.waited), state.listener.resume())
        };
        waited.iter().for_each(|waiting| self.wake(waiting));
        for (connection, segment) in arrived {
            self.receive(&connection, &segment);
        }
    }

    /// Ends the server. Statements that have arrived are lost.
    pub fn crash(&self) {
        let mut state = self.lock();
        let stop = if state.random.bool() { Stop::Refuses } else { Stop::Silent };
        state.listener.crash(stop);
        state.database.restart();
    }

    /// Starts the server again.
    pub fn restart(&self) {
        self.lock().listener.restart();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Takes the first complete message from `bytes`.
fn take_message(bytes: &mut Vec<u8>) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == END)?;
    let message = bytes.drain(..=end).take(end).collect();
    String::from_utf8(message).ok()
}

impl Acceptor for Node {
    fn number(&self) -> usize {
        0
    }

    fn receive(&self, connection: &Arc<Connection>, segment: &Segment) {
        let mut state = self.lock();
        if state.listener.receive(connection, segment) {
            self.read(&mut state, connection);
        }
    }

    fn record(&self, _: &Connection, sent: &mut Vec<u8>) {
        while let Some(statement) = take_message(sent) {
            let call = self.parse(&statement);
            call.iter().for_each(|call| self.record_release(call, |release| &mut release.sent));
        }
    }
}
