//! A simulated server: its connections, its commands, its scripts and its clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    mem,
    sync::{Arc, Mutex, MutexGuard},
};

use fastrand::Rng;
use polylock_core::{LockName, sync::lock};

use super::{
    database::Database,
    locks::{self, Held},
    resp::{Command, Reply, take_command},
    scripts::{Changes, Scripts},
};
use crate::simulation::{
    clock::WallClock,
    listener::{Listener, Stop},
    live_entry::LiveEntry,
    socket::{Acceptor, Connection, Segment},
    timeline::Timeline,
};

/// A server.
#[derive(Debug)]
pub struct Node {
    /// Its number in the run.
    pub number: usize,
    /// Its clock.
    pub clock: WallClock,
    memory: Memory,
    /// The texts of the scripts that are replaced, for a planted bug.
    changes: Changes,
    timeline: Arc<Timeline>,
    calls: Mutex<BTreeSet<SentCall>>,
    /// The ids of the requests of which a withdrawal of any number or a park was sent, whether or not it has arrived.
    withdrawn: Mutex<BTreeSet<Vec<u8>>>,
    state: Mutex<State>,
}

/// A call of a script that was sent, whether or not it has arrived: its checksum, and the first argument after the keys.
type SentCall = (Vec<u8>, Vec<u8>);

#[derive(Debug)]
struct State {
    random: Rng,
    /// The number of restarts.
    life: u32,
    /// The time until which it refuses some scripts.
    refuses_until: u64,
    listener: Listener,
    database: Database,
    /// The data at the last start.
    at_start: Database,
    /// The votes in data with which the server was started.
    started_with: BTreeSet<(LockName, i64)>,
    scripts: Scripts,
    /// The ids of the requests that were released.
    released: BTreeSet<Vec<u8>>,
    /// The holds that were found after the release of their requests.
    late: Vec<(u64, String)>,
    /// The holds or votes that the server has given, by lock and token.
    grants: BTreeMap<(LockName, i64), Grant>,
}

/// What a server remembers after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Everything.
    Kept,
    /// Nothing.
    Lost,
    /// It has an append-only file, which is that of its last start or a copy of another server's, or which it reads with a clock that is ahead.
    Doubtful,
}

/// A hold or a vote that a server has given.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The time of the run.
    pub at: u64,
    /// The server.
    pub server: usize,
    /// The id of the request.
    pub request: Vec<u8>,
    /// The owner, which is the process in one of its lives.
    pub owner: Vec<u8>,
}

impl Node {
    /// Creates a server that is up.
    #[must_use]
    pub fn new(
        number: usize,
        clock: WallClock,
        memory: Memory,
        changes: Changes,
        timeline: Arc<Timeline>,
        random: Rng,
    ) -> Arc<Self> {
        let state = State {
            random,
            life: 0,
            refuses_until: 0,
            listener: Listener::default(),
            database: Database::default(),
            at_start: Database::default(),
            scripts: Scripts::default(),
            released: BTreeSet::new(),
            late: Vec::new(),
            grants: BTreeMap::new(),
            started_with: BTreeSet::new(),
        };
        let (calls, withdrawn, state) = (Mutex::default(), Mutex::default(), Mutex::new(state));
        Arc::new(Self { number, clock, memory, changes, timeline, calls, withdrawn, state })
    }

    /// Returns the run id.
    fn run_id(&self, life: u32) -> String {
        format!("{:020x}{life:020x}", self.number + 1)
    }

    /// Executes a command at the server itself.
    pub fn execute(&self, command: &[&str]) {
        let command: Command = command.iter().map(|word| word.as_bytes().to_vec()).collect();
        self.inspect(|database| database.execute(&command));
    }

    /// Sets the membership of the server for `namespace` as if an operator had admitted it.
    pub fn admit(&self, namespace: &str) {
        let member = format!("confirmed {} 0 {} 0", self.run_id(0), self.number);
        self.execute(&["SET", &format!("{{{namespace}}}:member"), &member]);
    }

    /// Calls `look` with the data at the present time.
    pub fn inspect<T>(&self, look: impl FnOnce(&mut Database) -> T) -> T {
        let mut state = self.lock();
        state.database.now_us = self.clock.now_us();
        look(&mut state.database)
    }

    /// Returns the holds that were found after the release of their requests, with the times.
    pub fn late(&self) -> Vec<(u64, String)> {
        self.lock().late.clone()
    }

    /// Returns the holds or votes that the server has given, by lock and token.
    #[must_use]
    pub fn grants(&self) -> BTreeMap<(LockName, i64), Grant> {
        self.lock().grants.clone()
    }

    /// Returns the calls that were sent to the server.
    #[must_use]
    pub fn calls(&self) -> BTreeSet<SentCall> {
        lock(&self.calls).clone()
    }

    /// Returns the id of the request that has this vote.
    #[must_use]
    pub fn request_of(&self, vote: &LiveEntry) -> Option<Vec<u8>> {
        let (state, key) = (self.lock(), (vote.name.clone(), vote.token?.cast_signed()));
        state.grants.get(&key).map(|grant| grant.request.clone())
    }

    /// Returns true if the server was started with this vote: it has an old file or a copy of a sister's data, and its votes do not count.
    #[must_use]
    pub fn was_started_with(&self, name: &LockName, token: i64) -> bool {
        self.lock().started_with.contains(&(name.clone(), token))
    }

    /// Returns true if a message was sent that ends the hold of this request if a majority executes it, and is not repeated: a withdrawal that
    /// names no number, or a park.
    #[must_use]
    pub fn may_keep(&self, request: &[u8]) -> bool {
        lock(&self.withdrawn).contains(request)
    }

    /// Returns true if this server has a script with this checksum that releases or withdraws.
    #[must_use]
    pub fn is_release(&self, script: &[u8]) -> bool {
        self.lock().scripts.get(script).is_some_and(|script| matches!(script.purpose, "release" | "withdraw"))
    }

    fn is_park(&self, script: &[u8]) -> bool {
        self.lock().scripts.get(script).is_some_and(|script| script.purpose == "park")
    }

    /// Executes the commands that have arrived on `connection`, and sends the replies.
    fn read(&self, state: &mut State, connection: &Connection) {
        let number = connection.number;
        let mut out = BTreeMap::<u64, Vec<u8>>::new();
        while let Some(command) = state.listener.input(number).and_then(take_command) {
            state.database.now_us = self.clock.now_us();
            let replies = self.run(state, connection, &command);
            replies.iter().for_each(|reply| reply.encode(out.entry(number).or_default()));
            for (channel, message) in mem::take(&mut state.database.published) {
                let push = [Reply::text("message"), Reply::Bulk(channel.clone()), Reply::Bulk(message)];
                let push = Reply::Push(push.to_vec());
                for subscriber in state.database.subscribers.get(&channel).into_iter().flatten() {
                    push.encode(out.entry(*subscriber).or_default());
                }
            }
        }
        for (number, bytes) in out {
            state.listener.send(number, bytes);
        }
    }

    /// Executes a command of a connection, and returns the replies.
    fn run(&self, state: &mut State, connection: &Connection, command: &Command) -> Vec<Reply> {
        let word =
            |index: usize| command.get(index).map_or("", |word| std::str::from_utf8(word).unwrap_or(""));
        let reply = match (word(0), word(1)) {
            ("HELLO", _) => Reply::Map(
                ["server", "redis", "version", "7.2.0", "mode", "standalone"].map(Reply::text).to_vec(),
            ),
            ("CLIENT" | "SELECT", _) => Reply::Status("OK"),
            ("PING", _) => Reply::Status("PONG"),
            ("INFO", _) => Reply::text(self.info(state.life)),
            ("CONFIG", "GET") if word(2) == "appendfsync" => {
                Reply::Map(["appendfsync", "always"].map(Reply::text).to_vec())
            }
            ("CONFIG", "GET") => Reply::Map(Vec::new()),
            ("SUBSCRIBE", _) => {
                let subscribed = |(index, channel): (usize, &Vec<u8>)| {
                    state.database.subscribers.entry(channel.clone()).or_default().insert(connection.number);
                    let count = Reply::Int(i64::try_from(index + 1).unwrap_or(0));
                    Reply::Push(vec![Reply::text("subscribe"), Reply::Bulk(channel.clone()), count])
                };
                return command[1..].iter().enumerate().map(subscribed).collect();
            }
            ("SCRIPT", "LOAD") => Reply::text(state.scripts.load(word(2), self.changes)),
            ("EVALSHA", _) => self.run_script(state, connection, &command[1..]),
            _ => state.database.execute(command),
        };
        vec![reply]
    }

    fn run_script(&self, state: &mut State, connection: &Connection, arguments: &[Vec<u8>]) -> Reply {
        let [checksum, arguments @ ..] = arguments else { return Reply::Error("ERR no script".to_owned()) };
        let now = self.clock.to_run(self.clock.now_us());
        let Some(script) = state.scripts.get(checksum).cloned() else {
            return Reply::Error("NOSCRIPT No matching script. Please use EVAL.".to_owned());
        };
        let is_refused = now < state.refuses_until && state.random.bool();
        let reply = match is_refused {
            true => Reply::Error("BUSY Redis is busy running a script.".to_owned()),
            false => script.run(arguments, &mut state.database),
        };
        self.timeline.note(format_args!("n{}", self.number), || {
            format!(
                "p{} {} {}: {}",
                connection.process.0,
                script.purpose,
                shown(arguments),
                shown_reply(&reply)
            )
        });
        if !is_refused {
            state.record_grants(now, self.number, (script.purpose, &reply), arguments);
        }
        reply
    }

    fn info(&self, life: u32) -> String {
        let mut info = String::new();
        for (key, value) in [
            ("redis_version", "7.2.0"),
            ("redis_mode", "standalone"),
            ("role", "master"),
            ("maxmemory_policy", "noeviction"),
            ("aof_enabled", if self.memory == Memory::Lost { "0" } else { "1" }),
            ("run_id", &self.run_id(life)),
        ] {
            write!(info, "{key}:{value}\r\n").ok();
        }
        info
    }

    /// Stops the server.
    pub fn pause(&self) {
        self.lock().listener.pause();
    }

    /// Continues, and executes the commands that have arrived.
    pub fn resume(&self) {
        let arrived = self.lock().listener.resume();
        for (connection, segment) in arrived {
            self.receive(&connection, &segment);
        }
    }

    /// Refuses some scripts until `until`.
    pub fn refuse(&self, until: u64) {
        self.lock().refuses_until = until;
    }

    /// Returns a copy of the data.
    #[must_use]
    pub fn copy(&self) -> Database {
        self.inspect(|database| database.clone())
    }

    /// Ends the server. Commands that have arrived are lost. `other` is a copy of the data of another server.
    pub fn crash(&self, other: Database) {
        let mut state = self.lock();
        let stop = if state.random.bool() { Stop::Refuses } else { Stop::Silent };
        state.listener.crash(stop);
        let before = mem::take(&mut state.database);
        let data = match self.memory {
            Memory::Kept => before,
            Memory::Lost => Database::default(),
            Memory::Doubtful => match state.random.u8(..3) {
                0 => mem::take(&mut state.at_start),
                1 => other,
                _ => before.without_expiring_keys(),
            },
        };
        state.database = data.without_subscribers();
        if self.memory == Memory::Doubtful {
            let votes = locks::live(&mut state.database).into_iter();
            let votes: Vec<_> =
                votes.filter_map(|vote| Some((vote.name, vote.token?.cast_signed()))).collect();
            state.started_with.extend(votes);
        }
        state.at_start = state.database.clone();
        state.scripts = Scripts::default();
        state.life += 1;
    }

    /// Starts the server again.
    pub fn restart(&self) {
        self.lock().listener.restart();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Acceptor for Node {
    fn number(&self) -> usize {
        self.number
    }

    fn receive(&self, connection: &Arc<Connection>, segment: &Segment) {
        let mut state = self.lock();
        if state.listener.receive(connection, segment) {
            self.read(&mut state, connection);
        } else if state.listener.input(connection.number).is_none() {
            state.database.unsubscribe(connection.number);
        }
    }

    fn record(&self, _: &Connection, sent: &mut Vec<u8>) {
        while let Some(command) = take_command(sent) {
            let [name, script, keys, rest @ ..] = &command[..] else { continue };
            let keys: Option<usize> = std::str::from_utf8(keys).ok().and_then(|keys| keys.parse().ok());
            let argument = keys.and_then(|keys| rest.get(keys));
            if let (b"EVALSHA", Some(argument)) = (&name[..], argument) {
                lock(&self.calls).insert((script.clone(), argument.clone()));
                let names_no_number = keys.and_then(|keys| rest.get(keys + 1)).is_some_and(|it| it == b"0");
                if names_no_number && self.is_release(script) || self.is_park(script) {
                    lock(&self.withdrawn).insert(argument.clone());
                }
            }
        }
    }
}

impl State {
    /// Records the holds and votes in the locks of a script that has just run, and finds those of requests that were released before.
    fn record_grants(
        &mut self,
        at: u64,
        server: usize,
        (purpose, reply): (&str, &Reply),
        arguments: &[Vec<u8>],
    ) {
        let keys = number_of_keys(arguments);
        // A release that arrives after its expiry changes nothing, so its request keeps its hold until a repeated release arrives in time.
        if purpose == "release" && !is_expired(reply) {
            self.released.extend(arguments.get(keys + 1).cloned());
        }
        for key in arguments.iter().skip(1).take(keys).filter_map(|key| std::str::from_utf8(key).ok()) {
            let Some(name) = locks::lock_of(key) else { continue };
            for Held { request, token, owner, .. } in locks::held(&mut self.database, key) {
                if purpose == "claim" && self.released.contains(&request) {
                    self.late.push((at, key.to_owned()));
                }
                let grant = || Grant { at, server, request, owner };
                self.grants.entry((name.clone(), token)).or_insert_with(grant);
            }
        }
    }
}

/// Returns true if this is the reply of a script of the queues whose call had expired.
fn is_expired(reply: &Reply) -> bool {
    matches!(reply, Reply::Array(parts) if parts.first() == Some(&Reply::Int(-1)))
}

fn number_of_keys(arguments: &[Vec<u8>]) -> usize {
    let number = arguments.first().and_then(|keys| std::str::from_utf8(keys).ok());
    number.and_then(|keys| keys.parse().ok()).unwrap_or(0)
}

/// Returns the locks and the arguments of a script in a readable form.
fn shown(arguments: &[Vec<u8>]) -> String {
    let (keys, arguments) = arguments.get(1..).unwrap_or_default().split_at(number_of_keys(arguments));
    let locks = keys
        .iter()
        .filter_map(|key| Some(locks::lock_of(std::str::from_utf8(key).ok()?)?.as_str().to_owned()));
    let arguments = arguments.iter().map(|argument| match std::str::from_utf8(argument) {
        Ok(text) if !text.contains('\0') => text.to_owned(),
        _ => argument.iter().take(4).fold("#".to_owned(), |text, byte| format!("{text}{byte:02x}")),
    });
    locks.chain(arguments).collect::<Vec<_>>().join(" ")
}

fn shown_reply(reply: &Reply) -> String {
    match reply {
        Reply::Nil => "nil".to_owned(),
        Reply::Int(number) => number.to_string(),
        Reply::Bulk(text) => String::from_utf8_lossy(text).into_owned(),
        Reply::Status(text) => (*text).to_owned(),
        Reply::Error(text) => text.clone(),
        Reply::Array(values) | Reply::Map(values) | Reply::Push(values) => {
            format!("[{}]", values.iter().map(shown_reply).collect::<Vec<_>>().join(" "))
        }
    }
}
