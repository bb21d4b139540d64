//! The tables of the store, and its routines, as in `crates/polylock-sql/src/mysql/statements/routines`.

use std::{collections::BTreeMap, fmt::Write};

use polylock_core::{FencingToken, LockName, Mode};
use polylock_sql::simulation::{Row, Value};

use super::{
    rows::{Watched, held, hex},
    statement::{Batch, Call},
};
use crate::simulation::{live_entry::LiveEntry, plan::Planted};

/// The tables.
#[derive(Debug, Default)]
pub struct Database {
    /// The time of the server's clock, in microseconds since 1970.
    pub now_us: i64,
    /// All grants, for the checks.
    pub grants: Vec<Grant>,
    planted: Option<Planted>,
    /// The last token or queue position that was drawn. A real database has one for each shard of the names.
    gate: i64,
    /// The holds by name and slot.
    holds: BTreeMap<(Vec<u8>, Vec<u8>), Entry>,
    /// The waiters by name and queue position.
    waiters: BTreeMap<(Vec<u8>, i64), Entry>,
    /// The notices of the requests whose holds were removed by force, and empty ones of those whose claims are refused after their release; with
    /// the times until which they are kept.
    broken: BTreeMap<(Vec<u8>, Vec<u8>), Notice>,
}

/// A notice, and the time until which it is kept.
type Notice = (Vec<u8>, i64);

/// A hold or a waiter.
#[derive(Debug, Clone)]
struct Entry {
    request: Vec<u8>,
    /// The token; the queue position of a waiter.
    number: i64,
    mode: i64,
    owner: String,
    expires_us: i64,
    /// The notice of a break; an empty one if the hold is parked.
    notice: Option<Vec<u8>>,
}

impl Entry {
    fn is_live(&self, now: i64) -> bool {
        self.expires_us > now
    }
}

/// A grant.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The time of the server's clock.
    pub at_us: i64,
    /// The lock.
    pub name: LockName,
    /// The token.
    pub token: i64,
    /// The request.
    pub request: Vec<u8>,
    /// The owner, which is the process in one of its lives.
    pub owner: String,
}

fn conflicts(mode: i64) -> i64 {
    let mode = u8::try_from(mode).ok().and_then(Mode::from_bit);
    mode.map_or(0, |mode| mode.conflicts().into())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn name_of(bytes: &[u8]) -> LockName {
    LockName::from_store(text(bytes)).unwrap_or_else(|error| unreachable!("{error}"))
}

impl Database {
    /// Creates tables without rows.
    #[must_use]
    pub fn new(planted: Option<Planted>) -> Self {
        Self { planted, ..Self::default() }
    }

    fn has(&self, planted: Planted) -> bool {
        self.planted == Some(planted)
    }

    /// Executes a routine that is not a watch. Returns its rows; `None` if there is no such routine.
    pub fn execute(&mut self, call: &Call<'_>) -> Option<Vec<Row>> {
        let row = match (call.routine, &call.arguments[..]) {
            ("claim", [name, request, mode, modes, slot, owner, _, ttl, queue_ttl, counts, expiry]) => {
                let entry = Entry {
                    request: request.bytes().to_vec(),
                    number: 0,
                    mode: mode.int(),
                    owner: text(owner.bytes()),
                    expires_us: self.now_us + ttl.int(),
                    notice: None,
                };
                let ttls = (ttl.int(), queue_ttl.int());
                self.claim((name.bytes(), slot.bytes()), entry, modes.int(), ttls, counts.int(), expiry.int())
            }
            ("keep_alive", [batch]) => self.keep_alive(batch.bytes()),
            ("release", [name, request, slot, refused, expiry]) => {
                let key = (name.bytes(), request.bytes());
                self.release(key, slot.bytes().to_vec(), refused.int(), expiry.int())
            }
            ("park", [name, request, slot, token, left, refused, expiry]) => {
                let key = (name.bytes().to_vec(), slot.bytes().to_vec());
                self.park(&key, (request.bytes(), token.int()), (left.int(), refused.int()), expiry.int())
            }
            ("break", [name, tokens, notice, force, expiry]) => {
                let (tokens, notice) = (text(tokens.bytes()), notice.bytes());
                return Some(self.break_holds(name.bytes(), &tokens, notice, force.int() != 0, expiry.int()));
            }
            ("notice", [name, _, request, ..]) => {
                return Some(self.notice(name.bytes(), request.bytes()));
            }
            ("sweep", _) => {
                let now = self.now_us;
                self.holds.retain(|_, hold| hold.expires_us > now);
                self.waiters.retain(|_, waiter| waiter.expires_us > now);
                self.broken.retain(|_, (_, until)| *until > now);
                Row(vec![Value::Bytes(Vec::new()); 3])
            }
            _ => return None,
        };
        Some(vec![row])
    }

    fn holds_of<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a Entry> {
        self.holds.iter().filter(move |((of, _), _)| of == name).map(|(_, hold)| hold)
    }

    fn waiters_of<'a>(&'a self, name: &'a [u8]) -> impl DoubleEndedIterator<Item = &'a Entry> {
        self.waiters.iter().filter(move |((of, _), _)| of == name).map(|(_, waiter)| waiter)
    }

    fn delete_expired_holds(&mut self, name: &[u8]) {
        let now = self.now_us;
        self.holds.retain(|(of, _), hold| of != name || hold.expires_us > now);
    }

    /// Inserts a hold.
    fn grant(&mut self, (name, slot): (&[u8], Vec<u8>), hold: Entry) {
        self.grants.push(Grant {
            at_us: self.now_us,
            name: name_of(name),
            token: hold.number,
            request: hold.request.clone(),
            owner: hold.owner.clone(),
        });
        self.holds.insert((name.to_vec(), slot), hold);
    }

    /// `claim.sql`.
    fn claim(
        &mut self,
        (name, slot): (&[u8], &[u8]),
        mut entry: Entry,
        modes: i64,
        (ttl, queue_ttl): (i64, i64),
        counts: i64,
        expiry: i64,
    ) -> Row {
        let (now, token) = (self.now_us, self.gate + 1);
        if now > expiry && !self.has(Planted::MysqlLateClaim) {
            return Row(vec![Value::Null, Value::Null, Value::Null, Value::Null, Value::Int(now)]);
        }
        let record = self.broken.get(&(name.to_vec(), entry.request.clone()));
        let is_refused = record.is_some_and(|(_, until)| *until > now);
        if is_refused {
            let behind = Value::Bytes(entry.request);
            return Row(vec![
                Value::Null,
                Value::Int(1000),
                behind,
                Value::Null,
                Value::Int(now),
                Value::Null,
            ]);
        }
        self.delete_expired_holds(name);
        let key = (name.to_vec(), slot.to_vec());
        if let Some(hold) = self.holds.get(&key).filter(|hold| hold.request == entry.request) {
            return held(hold.number, hold.expires_us - now, now);
        }
        let own = self.waiters_of(name).find(|waiter| waiter.request == entry.request);
        let (seq, until) = (own.map(|own| own.number), own.map_or(0, |own| own.expires_us));
        let is_ahead = |waiter: &&Entry| {
            waiter.mode & modes != 0
                && seq.is_none_or(|seq| waiter.number < seq)
                && waiter.expires_us > now
                && waiter.request != entry.request
        };
        let ahead = self.waiters_of(name).rfind(is_ahead);
        let holders = || self.holds_of(name).filter(|hold| hold.mode & modes != 0);
        let ahead = ahead.or_else(|| holders().max_by_key(|hold| hold.number)).cloned();
        if let Some(ahead) = ahead {
            let count = holders().count() + self.waiters_of(name).filter(is_ahead).count();
            let count = if counts == 1 { Value::Int(count.cast_signed() as i64) } else { Value::Null };
            let seq = self.enqueue(name, &entry, (seq, until), queue_ttl);
            let (left, behind) = (ahead.expires_us - now, Value::Bytes(ahead.request));
            let seq = seq.map_or(Value::Null, Value::Int);
            return Row(vec![Value::Null, Value::Int(left), behind, count, Value::Int(now), seq]);
        }
        self.waiters.retain(|(of, number), waiter| {
            let is_ahead = seq.is_none_or(|seq| *number < seq);
            let ends = waiter.request == entry.request || is_ahead && waiter.expires_us <= now;
            of != name || !ends
        });
        self.gate = token;
        entry.number = token;
        self.grant((name, slot.to_vec()), entry);
        held(token, ttl, now)
    }

    /// Adds a request to the queue, or extends its queue entry if less than half of it is left. Returns its position.
    fn enqueue(
        &mut self,
        name: &[u8],
        entry: &Entry,
        (seq, until): (Option<i64>, i64),
        queue_ttl: i64,
    ) -> Option<i64> {
        let expires_us = self.now_us + queue_ttl;
        if queue_ttl == 0 || seq.is_some() && until - self.now_us >= queue_ttl / 2 {
            return seq;
        }
        let number = seq.unwrap_or_else(|| {
            self.gate += 1;
            let last = self.waiters_of(name).map(|waiter| waiter.number).max().unwrap_or(0);
            self.gate.max(last + 1)
        });
        self.waiters.insert((name.to_vec(), number), Entry { number, expires_us, ..entry.clone() });
        Some(number)
    }

    /// `keep_alive.sql`.
    fn keep_alive(&mut self, batch: &[u8]) -> Row {
        let (mut batch, mut states, now) = (Batch(batch), String::new(), self.now_us);
        while let Some(name) = batch.name() {
            let request = batch.request();
            let key = (name.to_vec(), batch.slot(&request));
            let (ttl, queue_ttl) = (batch.number(), batch.number());
            let is_false = self.has(Planted::MysqlFalseRenewal);
            let is_shortening = self.has(Planted::MysqlShorteningRenewal);
            let was_broken = self
                .broken
                .get(&(name.to_vec(), request.clone()))
                .is_some_and(|(notice, _)| !notice.is_empty());
            let is_live = |entry: &&mut Entry| entry.request == request && entry.expires_us > now;
            if let Some(hold) = self.holds.get_mut(&key).filter(is_live) {
                if let Some(notice) = &hold.notice {
                    states += if notice.is_empty() { "G," } else { "B," };
                    continue;
                }
                let mut left = ttl;
                if !is_false {
                    let until = if is_shortening { now + ttl } else { hold.expires_us.max(now + ttl) };
                    hold.expires_us = until;
                    left = hold.expires_us - now;
                }
                write!(states, "H {left} {} {},", hold.number, hold.mode).ok();
                continue;
            }
            let waiters = self.waiters.iter_mut().filter(|((of, _), _)| of == name);
            match waiters.map(|(_, waiter)| waiter).find(is_live) {
                Some(waiter) => {
                    waiter.expires_us = waiter.expires_us.max(now + queue_ttl);
                    states += "Q,";
                }
                None => states += if was_broken { "B," } else { "G," },
            }
        }
        Row(vec![Value::Bytes(states.into_bytes())])
    }

    /// Refuses the claims of this request until `until`, or longer if they are already.
    fn refuse(&mut self, request: (Vec<u8>, Vec<u8>), until: i64) {
        let (_, refused) = self.broken.entry(request).or_default();
        *refused = until.max(*refused);
    }

    /// `release.sql`.
    fn release(&mut self, (name, request): (&[u8], &[u8]), slot: Vec<u8>, refused: i64, expiry: i64) -> Row {
        let now = self.now_us;
        if now > expiry {
            return Row(vec![Value::Null, Value::Null, Value::Bytes(Vec::new()), Value::Int(now)]);
        }
        let before = self.waiters.len();
        self.waiters.retain(|(of, _), waiter| of != name || waiter.request != request);
        let key = (name.to_vec(), slot);
        let is_foreign = self.has(Planted::MysqlForeignRelease);
        let is_held = self.holds.get(&key).is_some_and(|hold| hold.request == request || is_foreign);
        if is_held {
            self.holds.remove(&key);
        }
        let found = is_held || self.waiters.len() < before;
        let record = (name.to_vec(), request.to_vec());
        let notice = if found { None } else { self.broken.get(&record).map(|(notice, _)| notice.clone()) };
        let notice = notice.filter(|notice| !notice.is_empty());
        if refused > 0 && !self.has(Planted::MysqlForgottenCopies) {
            self.refuse(record, now + refused);
        }
        let grants = self.hand_over(name).into_bytes();
        let notice = notice.map_or(Value::Null, Value::Bytes);
        Row(vec![Value::Int(found.into()), notice, Value::Bytes(grants), Value::Int(now)])
    }

    /// `park.sql`.
    fn park(
        &mut self,
        key: &(Vec<u8>, Vec<u8>),
        (request, token): (&[u8], i64),
        (left, refused): (i64, i64),
        expiry: i64,
    ) -> Row {
        let now = self.now_us;
        if now > expiry {
            return Row(vec![Value::Null, Value::Null, Value::Int(now)]);
        }
        let is_target =
            |hold: &&mut Entry| hold.request == request && hold.number == token && hold.expires_us > now;
        let record = (key.0.clone(), request.to_vec());
        let (is_parked, notice) = match self.holds.get_mut(key).filter(is_target) {
            Some(hold) => {
                if hold.notice.is_none() {
                    (hold.notice, hold.expires_us) = (Some(Vec::new()), now + left);
                }
                (hold.notice.as_ref().is_some_and(Vec::is_empty), hold.notice.clone())
            }
            None => (false, self.broken.get(&record).map(|(notice, _)| notice.clone())),
        };
        if is_parked && refused > 0 {
            self.refuse(record, now + refused);
        }
        Row(vec![Value::Int(is_parked.into()), notice.map_or(Value::Null, Value::Bytes), Value::Int(now)])
    }

    /// `break.sql`. The tokens are separated by commas.
    fn break_holds(
        &mut self,
        name: &[u8],
        tokens: &str,
        notice: &[u8],
        force: bool,
        expiry: i64,
    ) -> Vec<Row> {
        let now = self.now_us;
        let mut head = vec![Value::Null; 8];
        (head[1], head[6]) = (Value::Int((now <= expiry).into()), Value::Int(now));
        let mut rows = vec![Row(head)];
        let tokens: Vec<i64> = tokens.split(',').filter_map(|token| token.parse().ok()).collect();
        let is_untargeted = self.has(Planted::MysqlUntargetedBreak);
        let is_target = |of: &[u8], hold: &Entry| {
            of == name && hold.is_live(now) && (is_untargeted || tokens.contains(&hold.number))
        };
        if now > expiry {
            return rows;
        }
        for ((of, _), hold) in self.holds.iter_mut().filter(|((of, _), hold)| is_target(of, hold)) {
            let notice = hold.notice.get_or_insert_with(|| notice.to_vec()).clone();
            rows.push(Row(vec![
                Value::Bytes(of.clone()),
                Value::Int(hold.number),
                Value::Int(hold.mode),
                Value::Bytes(hold.owner.clone().into_bytes()),
                Value::Bytes(Vec::new()),
                Value::Int(0),
                Value::Int(hold.expires_us - now),
                Value::Bytes(notice),
            ]));
        }
        if force {
            let removed = self.holds.extract_if(.., |(of, _), hold| is_target(of, hold));
            for (_, hold) in removed {
                let shown =
                    hold.notice.filter(|notice| !notice.is_empty()).unwrap_or_else(|| notice.to_vec());
                let record = self.broken.entry((name.to_vec(), hold.request)).or_default();
                *record = (shown, hold.expires_us.max(record.1));
            }
        }
        rows
    }

    /// `notice.sql`.
    fn notice(&self, name: &[u8], request: &[u8]) -> Vec<Row> {
        let marked = self.holds_of(name).filter(|hold| hold.request == request);
        let removed = self.broken.get(&(name.to_vec(), request.to_vec())).map(|(notice, _)| notice);
        let notices = marked.filter_map(|hold| hold.notice.as_ref()).chain(removed);
        notices.map(|notice| Row(vec![Value::Bytes(notice.clone())])).collect()
    }

    /// Grants the lock to every waiter that can hold it now.
    fn hand_over(&mut self, name: &[u8]) -> String {
        let (now, mut grants, before) = (self.now_us, String::new(), self.gate);
        self.delete_expired_holds(name);
        self.waiters.retain(|(of, _), waiter| of != name || waiter.expires_us > now);
        let mut ahead = self.holds_of(name).fold(0, |ahead, hold| ahead | conflicts(hold.mode));
        if self.has(Planted::MysqlUncheckedHandover) {
            ahead = 0;
        }
        let waiters: Vec<Entry> = self.waiters_of(name).cloned().collect();
        for waiter in waiters {
            if waiter.mode & ahead == 0 {
                let (position, request) = (waiter.number, waiter.request.clone());
                self.waiters.remove(&(name.to_vec(), position));
                self.gate += 1;
                let mut left = (waiter.expires_us - now).max(0);
                if self.has(Planted::MysqlLongHandover) {
                    left *= 2;
                }
                write!(grants, "{} {position} {} {left},", hex(&request), self.gate).ok();
                let slot = if waiter.mode == i64::from(Mode::Exclusive.bit()) { Vec::new() } else { request };
                ahead |= conflicts(waiter.mode);
                self.grant((name, slot), Entry { number: self.gate, ..waiter });
            } else {
                ahead |= conflicts(waiter.mode);
            }
        }
        if self.has(Planted::MysqlRepeatedToken) {
            self.gate = before;
        }
        grants
    }

    /// One check of `watch.sql`.
    pub fn watch(&mut self, batch: &[u8]) -> Watched {
        let (mut batch, now) = (Batch(batch), self.now_us);
        let mut watched = Watched { grants: String::new(), gone: String::new(), nearest: 8 };
        while let Some(name) = batch.name() {
            let request = batch.request();
            let key = (name.to_vec(), batch.slot(&request));
            let (queue_ttl, place, ahead) = (batch.number(), batch.number(), batch.request());
            let is_live = |entry: &&Entry| entry.request == ahead && entry.expires_us > now;
            if self.waiters_of(name).any(|waiter| is_live(&waiter)) {
                let count = self.waiters_of(name).filter(|waiter| waiter.number < place).count().min(8);
                watched.nearest = watched.nearest.min(count.cast_signed() as i64);
            } else if self.holds_of(name).any(|hold| is_live(&hold)) {
                watched.nearest = 0;
            } else if let Some(hold) = self
                .holds
                .get_mut(&key)
                .filter(|hold| hold.request == request && hold.number > place && hold.expires_us > now)
            {
                hold.expires_us = (hold.expires_us + 1).max(now + queue_ttl);
                write!(watched.grants, "{} {place} {} {queue_ttl},", hex(&request), hold.number).ok();
            } else {
                write!(watched.gone, "{},", hex(&ahead)).ok();
            }
        }
        watched
    }

    /// A restart. The tables are durable.
    pub fn restart(&mut self) {
        if self.has(Planted::MysqlLostState) {
            self.holds.clear();
            self.waiters.clear();
        }
    }

    /// Returns the time at which the hold of `name` with `token` expires; `None` if it has ended.
    #[must_use]
    pub fn expires(&self, name: &LockName, token: FencingToken) -> Option<i64> {
        let mut holds = self.holds_of(name.as_str().as_bytes());
        Some(holds.find(|hold| hold.number == token.as_i64())?.expires_us)
    }

    /// Returns the live entries.
    #[must_use]
    pub fn live(&self) -> Vec<LiveEntry> {
        let is_live = |entry: &&Entry| entry.expires_us > self.now_us;
        let holds = self.holds.iter().filter(|(_, hold)| is_live(hold)).map(|((name, _), hold)| LiveEntry {
            name: name_of(name),
            token: Some(hold.number.cast_unsigned()),
            is_free_to_go: false,
            owner: Some(hold.owner.clone()),
        });
        let waiters =
            self.waiters.iter().filter(|(_, waiter)| is_live(waiter)).map(|((name, seq), waiter)| {
                let ahead = self.waiters_of(name).filter(|other| other.number < *seq).filter(is_live);
                let others = ahead.chain(self.holds_of(name).filter(is_live));
                let is_free_to_go =
                    others.fold(0, |all, other| all | conflicts(other.mode)) & waiter.mode == 0;
                let owner = Some(waiter.owner.clone());
                LiveEntry { name: name_of(name), token: None, is_free_to_go, owner }
            });
        holds.chain(waiters).collect()
    }
}
