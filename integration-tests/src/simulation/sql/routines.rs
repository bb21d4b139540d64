//! The routines that both databases have, from their arguments to what they do. Their files are
//! `crates/polylock-sql/src/{postgres,mysql}/statements/routines`.

use polylock_core::Mode;
use polylock_sql::simulation::{Row, Value};

use super::{
    statement::Batch,
    tables::{Database, Entry, Key, Payload, conflicts},
};
use crate::simulation::plan::Planted as P;

/// A claim.
#[derive(Debug)]
pub struct Claim<'a> {
    /// The lock, and the slot of the hold.
    pub key: (&'a [u8], &'a [u8]),
    /// The hold, except for its token.
    pub entry: Entry,
    /// The modes that conflict with it.
    pub modes: i64,
    /// The TTL, and that of the queue entry.
    pub ttls: (i64, i64),
    /// The time after which it has no effect.
    pub expiry: i64,
}

/// The outcome of a claim.
#[derive(Debug)]
pub enum Claimed {
    /// It has expired.
    Expired,
    /// It is a copy of a claim that was released.
    Refused,
    /// It holds the lock, with this token and this rest of its lease.
    Held(i64, i64),
    /// An entry is ahead of it.
    Blocked {
        /// The rest of the lease of the last one ahead.
        left: i64,
        /// The request of the last one ahead.
        behind: Vec<u8>,
        /// The number of entries ahead.
        ahead: i64,
        /// The queue position, if it has one.
        place: Option<i64>,
    },
}

/// A grant to a waiter.
#[derive(Debug)]
pub struct Granted {
    /// The request.
    pub request: Vec<u8>,
    /// The queue position that it had.
    pub place: i64,
    /// The token.
    pub token: i64,
    /// The rest of the lease.
    pub left: i64,
    /// The channel and the ticket of the waiter.
    pub notifies: (String, i64),
}

/// Returns the number of entries.
fn count(entries: usize) -> i64 {
    entries.cast_signed() as i64
}

impl Database {
    /// `claim.sql`.
    pub(super) fn claim(&mut self, claim: Claim<'_>) -> Claimed {
        let Claim { key: (name, slot), entry, modes, ttls: (ttl, queue_ttl), expiry } = claim;
        let now = self.now_us;
        if now > expiry && !self.has(&[P::MysqlLateClaim, P::PostgresLateClaim]) {
            return Claimed::Expired;
        }
        let record = self.broken.get(&(name.to_vec(), entry.request.clone()));
        if record.is_some_and(|(_, until)| *until > now) {
            return Claimed::Refused;
        }
        self.delete_expired_holds(name);
        if self.is_postgres {
            let granted = self.settle(name, Some((&entry.request, ttl)));
            let others = granted.iter().filter(|granted| granted.request != entry.request);
            others.for_each(|granted| self.notify(granted));
        }
        let key = (name.to_vec(), slot.to_vec());
        if let Some(hold) = self.holds.get(&key).filter(|hold| hold.request == entry.request) {
            return Claimed::Held(hold.number, hold.expires_us - now);
        }
        let own = self.waiters_of(name).find(|waiter| waiter.request == entry.request);
        let (place, until) = (own.map(|own| own.number), own.map_or(0, |own| own.expires_us));
        let is_ahead = |waiter: &&Entry| {
            waiter.mode & modes != 0
                && place.is_none_or(|place| waiter.number < place)
                && waiter.is_live(now)
                && waiter.request != entry.request
        };
        let holders = || self.holds_of(name).filter(|hold| hold.mode & modes != 0);
        let last = self.waiters_of(name).rfind(is_ahead);
        if let Some(last) = last.or_else(|| holders().max_by_key(|hold| hold.number)).cloned() {
            let ahead = count(holders().count() + self.waiters_of(name).filter(is_ahead).count());
            let place = self.enqueue(name, &entry, (place, until), queue_ttl);
            return Claimed::Blocked { left: last.expires_us - now, behind: last.request, ahead, place };
        }
        self.waiters.retain(|(of, number), waiter| {
            let is_ahead = place.is_none_or(|place| *number < place);
            let ends = waiter.request == entry.request || is_ahead && !waiter.is_live(now);
            of != name || !ends
        });
        Claimed::Held(self.grant((name, slot.to_vec()), entry), ttl)
    }

    /// Adds a request to the queue, or extends its queue entry if too little of it is left. Returns its position.
    fn enqueue(
        &mut self,
        name: &[u8],
        entry: &Entry,
        (place, until): (Option<i64>, i64),
        queue_ttl: i64,
    ) -> Option<i64> {
        let expires_us = self.now_us + queue_ttl;
        let least = if self.is_postgres { queue_ttl - queue_ttl / 8 } else { queue_ttl / 2 };
        let known = place.and_then(|place| self.waiters.get(&(name.to_vec(), place)));
        let is_moved = known.is_some_and(|known| known.notifies != entry.notifies);
        if queue_ttl == 0 || place.is_some() && until - self.now_us >= least && !is_moved {
            return place;
        }
        let number = place.unwrap_or_else(|| self.draw_place(name));
        let new = Entry { number, expires_us, ..entry.clone() };
        let waiter = self.waiters.entry((name.to_vec(), number)).or_insert(new);
        (waiter.expires_us, waiter.notifies) = (expires_us, entry.notifies.clone());
        Some(number)
    }

    /// `settle.sql` of PostgreSQL, and the loop in `release.sql` of MySQL: grants the lock to every waiter that can hold it now. The request
    /// `active`, if it is granted the lock, gets this lease.
    pub(super) fn settle(&mut self, name: &[u8], active: Option<(&[u8], i64)>) -> Vec<Granted> {
        let (now, before, mut grants) = (self.now_us, self.tokens, Vec::new());
        let all = i64::from(Mode::Exclusive.conflicts());
        let mut ahead = self.holds_of(name).fold(0, |ahead, hold| ahead | conflicts(hold.mode));
        if self.has(&[P::MysqlUncheckedHandover]) {
            ahead = 0;
        }
        let waiters: Vec<Entry> = self.waiters_of(name).cloned().collect();
        for waiter in waiters {
            if ahead & all == all {
                break;
            }
            let (place, mode) = (waiter.number, waiter.mode);
            if !waiter.is_live(now) {
                self.waiters.remove(&(name.to_vec(), place));
                continue;
            }
            if mode & ahead == 0 {
                self.waiters.remove(&(name.to_vec(), place));
                let (request, notifies) = (waiter.request.clone(), waiter.notifies.clone());
                let ttl = active.filter(|(active, _)| *active == request).map(|(_, ttl)| ttl);
                let expires_us = ttl.map_or(waiter.expires_us, |ttl| now + ttl);
                let slot =
                    if mode == i64::from(Mode::Exclusive.bit()) { Vec::new() } else { request.clone() };
                let token = self.grant((name, slot), Entry { expires_us, ..waiter });
                let mut left = expires_us - now;
                if self.has(&[P::MysqlLongHandover]) {
                    left *= 2;
                }
                grants.push(Granted { request, place, token, left, notifies });
            }
            ahead |= conflicts(mode);
        }
        if self.has(&[P::MysqlRepeatedToken]) {
            self.tokens = before;
        }
        grants
    }

    /// Notifies the process of a waiter of its grant.
    pub(super) fn notify(&mut self, granted: &Granted) {
        let Granted { place, token, left, notifies: (channel, ticket), .. } = granted;
        self.notifications.push((channel.clone(), Payload::Grant([*ticket, *place, *token, *left])));
    }

    /// `keep_alive.sql`. Returns a state for each request.
    pub(super) fn keep_alive(&mut self, batch: &[u8]) -> Vec<String> {
        let (mut batch, mut states, now) = (Batch(batch), Vec::new(), self.now_us);
        while let Some(name) = batch.name() {
            let request = batch.request();
            let key = (name.to_vec(), batch.slot(&request));
            states.push(self.keep_one_alive(&key, &request, (batch.number(), batch.number()), now));
        }
        states
    }

    fn keep_one_alive(
        &mut self,
        key: &Key,
        request: &[u8],
        (ttl, queue_ttl): (i64, i64),
        now: i64,
    ) -> String {
        let is_false = self.has(&[P::MysqlFalseRenewal]);
        let is_shortening = self.has(&[P::MysqlShorteningRenewal, P::PostgresShorteningRenewal]);
        let mut has_notice = false;
        if let Some(hold) = self.holds.get_mut(key).filter(|hold| hold.request == request) {
            if hold.is_live(now) && hold.notice.is_none() {
                let until = if is_shortening { now + ttl } else { hold.expires_us.max(now + ttl) };
                let left = if is_false { ttl } else { until - now };
                if !is_false {
                    hold.expires_us = until;
                }
                return format!("H {left} {} {}", hold.number, hold.mode);
            }
            has_notice = hold.notice.as_ref().is_some_and(|notice| !notice.is_empty());
        }
        let mut waiters = self.waiters.iter_mut().filter(|((of, _), _)| *of == key.0);
        if let Some((_, waiter)) = waiters.find(|(_, it)| it.request == request && it.is_live(now)) {
            waiter.expires_us = waiter.expires_us.max(now + queue_ttl);
            return "Q".to_owned();
        }
        let record = self.broken.get(&(key.0.clone(), request.to_vec()));
        let was_broken = has_notice || record.is_some_and(|(notice, _)| !notice.is_empty());
        if was_broken { "B" } else { "G" }.to_owned()
    }

    /// Refuses the claims of this request until `until`, or longer if they are already.
    fn refuse(&mut self, request: Key, until: i64) {
        let (_, refused) = self.broken.entry(request).or_default();
        *refused = until.max(*refused);
    }

    /// Returns the notice of a hold that was removed, unless it is empty.
    fn notice_of(&self, record: &Key) -> Option<Vec<u8>> {
        self.broken.get(record).map(|(notice, _)| notice.clone()).filter(|notice| !notice.is_empty())
    }

    /// `release.sql`, without its grants: ends the hold at `key`, or else the queue entry. Returns true if there was one, and the notice if there was
    /// none; `None` if the release has expired.
    pub(super) fn release(
        &mut self,
        (name, request): (&[u8], &[u8]),
        key: Option<Key>,
        (refused, expiry): (i64, i64),
    ) -> Option<(bool, Value)> {
        let now = self.now_us;
        if now > expiry {
            return None;
        }
        let before = self.waiters.len();
        self.waiters.retain(|(of, _), waiter| of != name || waiter.request != request);
        let is_foreign = self.has(&[P::MysqlForeignRelease]);
        let is_own = |key: &Key| self.holds.get(key).is_some_and(|it| it.request == request || is_foreign);
        let key = key.filter(is_own);
        let found = key.is_some() || self.waiters.len() < before;
        key.map(|key| self.holds.remove(&key));
        let record = (name.to_vec(), request.to_vec());
        let notice = if found { None } else { self.notice_of(&record) };
        if refused > 0 && !self.has(&[P::MysqlForgottenCopies, P::PostgresForgottenCopies]) {
            self.refuse(record, now + refused);
        }
        Some((found, notice.map_or(Value::Null, Value::Bytes)))
    }

    /// `park.sql`, of the hold at `key`.
    pub(super) fn park(
        &mut self,
        (name, request, token): (&[u8], &[u8], i64),
        key: Option<&Key>,
        (left, refused): (i64, i64),
        expiry: i64,
    ) -> Row {
        let now = self.now_us;
        if now > expiry {
            return Row(vec![Value::Null, Value::Null, Value::Int(now)]);
        }
        let is_target =
            |hold: &&mut Entry| hold.request == request && hold.number == token && hold.is_live(now);
        let record = (name.to_vec(), request.to_vec());
        let (is_parked, notice) = match key.and_then(|key| self.holds.get_mut(key)).filter(is_target) {
            Some(hold) => {
                if hold.notice.is_none() {
                    (hold.notice, hold.expires_us) = (Some(Vec::new()), now + left);
                }
                (hold.notice.as_ref().is_some_and(Vec::is_empty), hold.notice.clone())
            }
            None => (false, self.notice_of(&record)),
        };
        if is_parked && refused > 0 {
            self.refuse(record, now + refused);
        }
        Row(vec![Value::Int(is_parked.into()), notice.map_or(Value::Null, Value::Bytes), Value::Int(now)])
    }

    /// `break.sql`, without its notifications and its grants. The tokens are separated by commas. Returns the first row, and the broken holds.
    pub(super) fn break_holds(
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
        let is_untargeted = self.has(&[P::MysqlUntargetedBreak, P::PostgresUntargetedBreak]);
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

    /// `convert.sql`, of the hold at `key`. `modes` has the new mode, the modes in the way, the conflicts of the present mode, and the modes of a
    /// conversion that waits.
    pub(super) fn convert(
        &mut self,
        (name, request, from): (&[u8], &[u8], i64),
        key: Option<&Key>,
        [to, in_way, held_conflicts, waiting]: [i64; 4],
        expiry: i64,
    ) -> Row {
        let now = self.now_us;
        let row = |token: Option<i64>, mode: Option<i64>, left: Option<i64>, deadlock: Option<i64>| {
            let values = [token, mode, left, deadlock, Some(now)];
            Row(values.map(|value| value.map_or(Value::Null, Value::Int)).into())
        };
        if now > expiry {
            return row(None, None, None, None);
        }
        self.delete_expired_holds(name);
        let others = || self.holds_of(name).filter(|hold| hold.request != request);
        let left = others().filter(|it| it.mode & in_way != 0).map(|it| it.expires_us - now).max();
        let is_deadlock = others().any(|hold| hold.mode & held_conflicts != 0);
        let one_waits = others().any(|hold| hold.mode & in_way != 0 && hold.mode & (hold.mode - 1) != 0);
        let is_target = |hold: &&mut Entry| hold.request == request && hold.notice.is_none();
        let Some(hold) = key.and_then(|key| self.holds.get_mut(key)).filter(is_target) else {
            return row(None, None, None, Some(0));
        };
        let before = hold.clone();
        let mut deadlock = 0;
        if hold.number != from {
            return row(Some(before.number), Some(before.mode), None, Some(0));
        } else if left.is_none() {
            self.tokens += 1;
            (hold.number, hold.mode) = (self.tokens, to);
            return row(Some(hold.number), Some(to), None, Some(0));
        } else if is_deadlock {
            deadlock = 1;
        } else if waiting != 0 && !one_waits {
            hold.mode = waiting;
        }
        row(Some(before.number), Some(before.mode), left, Some(deadlock))
    }

    /// `notice.sql`.
    pub(super) fn notice(&self, name: &[u8], request: &[u8]) -> Vec<Row> {
        let marked = self.holds_of(name).filter(|hold| hold.request == request);
        let removed = self.broken.get(&(name.to_vec(), request.to_vec())).map(|(notice, _)| notice);
        let notices = marked.filter_map(|hold| hold.notice.as_ref()).chain(removed);
        notices.map(|notice| Row(vec![Value::Bytes(notice.clone())])).collect()
    }
}
