//! The calls of MySQL, and the check for waiters that only MySQL has. The files are `crates/polylock-sql/src/mysql/statements`.

use std::fmt::Write;

use polylock_sql::simulation::{Row, Value};

use super::{
    routines::{Claim, Claimed, Granted},
    rows::hex,
    statement::{Argument, Batch, Call, unhex},
    tables::{Database, Entry, text},
};

/// Parses `CALL polylock_ROUTINE_VERSION(ARGUMENT, ...);`, or the query of a notice, which has the name, the slot and the request.
#[must_use]
pub fn parse(text: &str) -> Option<Call<'_>> {
    if text.trim().starts_with("SELECT notice FROM") {
        let literals = text.split("x'").skip(1).map(|rest| rest.split_once('\'').map(|(digits, _)| digits));
        let arguments = literals.map(|digits| unhex(digits?).map(Argument::Bytes)).collect::<Option<_>>()?;
        return Some(Call { routine: "notice", arguments });
    }
    let (routine, rest) = text.trim().strip_prefix("CALL polylock_")?.split_once('(')?;
    let (routine, _) = routine.rsplit_once('_')?;
    let argument = |text: &str| {
        let text =
            text.strip_prefix("CONVERT(").map_or(text, |text| text.trim_end_matches(" USING utf8mb4)"));
        match text.strip_prefix("x'") {
            None => text.parse().ok().map(Argument::Int),
            Some(digits) => digits.strip_suffix('\'').and_then(unhex).map(Argument::Bytes),
        }
    };
    let arguments = rest.strip_suffix(");")?.split(", ").map(argument).collect::<Option<_>>()?;
    Some(Call { routine, arguments })
}

/// Executes a routine that is not a watch. Returns its rows; `None` if there is no such routine.
pub fn execute(database: &mut Database, call: &Call<'_>) -> Option<Vec<Row>> {
    let now = database.now_us;
    let row = match (call.routine, &call.arguments[..]) {
        ("claim", [name, request, mode, modes, slot, owner, _, ttl, queue_ttl, counts, expiry]) => {
            let entry = Entry {
                request: request.bytes().to_vec(),
                number: 0,
                mode: mode.int(),
                owner: text(owner.bytes()),
                expires_us: now + ttl.int(),
                notice: None,
                notifies: (String::new(), 0),
            };
            claimed(
                database.claim(Claim {
                    key: (name.bytes(), slot.bytes()),
                    entry,
                    modes: modes.int(),
                    ttls: (ttl.int(), queue_ttl.int()),
                    expiry: expiry.int(),
                }),
                (request.bytes(), counts.int() == 1),
                now,
            )
        }
        ("keep_alive", [batch]) => {
            let states = database.keep_alive(batch.bytes()).join(",");
            // There is a comma after the last one, too.
            Row(vec![Value::Bytes((states + ",").into_bytes())])
        }
        ("release", [name, request, slot, refused, expiry]) => {
            let key = (name.bytes().to_vec(), slot.bytes().to_vec());
            let limits = (refused.int(), expiry.int());
            match database.release((name.bytes(), request.bytes()), Some(key), limits) {
                None => Row(vec![Value::Null, Value::Null, Value::Bytes(Vec::new()), Value::Int(now)]),
                Some((found, notice)) => {
                    database.delete_expired_holds(name.bytes());
                    let grants = shown(&database.settle(name.bytes(), None)).into_bytes();
                    Row(vec![Value::Int(found.into()), notice, Value::Bytes(grants), Value::Int(now)])
                }
            }
        }
        ("park", [name, request, slot, token, left, refused, expiry]) => {
            let key = (name.bytes().to_vec(), slot.bytes().to_vec());
            let target = (name.bytes(), request.bytes(), token.int());
            database.park(target, Some(&key), (left.int(), refused.int()), expiry.int())
        }
        ("break", [name, tokens, notice, force, expiry]) => {
            let (tokens, notice) = (text(tokens.bytes()), notice.bytes());
            let (force, expiry) = (force.int() != 0, expiry.int());
            return Some(database.break_holds(name.bytes(), &tokens, notice, force, expiry));
        }
        ("convert", [name, request, slot, from, to, in_way, held_conflicts, waiting, expiry]) => {
            let key = (name.bytes().to_vec(), slot.bytes().to_vec());
            let target = (name.bytes(), request.bytes(), from.int());
            let modes = [to, in_way, held_conflicts, waiting].map(Argument::int);
            database.convert(target, Some(&key), modes, expiry.int())
        }
        ("notice", [name, _, request, ..]) => {
            return Some(database.notice(name.bytes(), request.bytes()));
        }
        ("sweep", _) => {
            database.sweep();
            Row(vec![Value::Bytes(Vec::new()); 3])
        }
        _ => return None,
    };
    Some(vec![row])
}

/// Returns the reply to a claim of `request`, which counts the entries ahead or does not.
fn claimed(claimed: Claimed, (request, counts): (&[u8], bool), now: i64) -> Row {
    let clock = Value::Int(now);
    Row(match claimed {
        Claimed::Expired => vec![Value::Null, Value::Null, Value::Null, Value::Null, clock],
        Claimed::Refused => {
            let behind = Value::Bytes(request.to_vec());
            vec![Value::Null, Value::Int(1000), behind, Value::Null, clock, Value::Null]
        }
        Claimed::Held(token, left) => {
            vec![Value::Int(token), Value::Int(left), Value::Null, Value::Int(0), clock]
        }
        Claimed::Blocked { left, behind, ahead, place } => {
            let ahead = if counts { Value::Int(ahead) } else { Value::Null };
            let place = place.map_or(Value::Null, Value::Int);
            vec![Value::Null, Value::Int(left), Value::Bytes(behind), ahead, clock, place]
        }
    })
}

/// Returns grants as a text.
fn shown(grants: &[Granted]) -> String {
    grants.iter().fold(String::new(), |mut text, Granted { request, place, token, left, .. }| {
        write!(text, "{} {place} {token} {left},", hex(request)).ok();
        text
    })
}

/// The outcome of one check for waiters.
#[derive(Debug)]
pub struct Watched {
    /// The waiters that hold the lock now.
    pub grants: String,
    /// The requests that nobody need wait for any more.
    pub gone: String,
    /// The number of waiters ahead of the one that is next.
    pub nearest: i64,
}

impl Watched {
    /// Returns true if the statement need not wait.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        !self.grants.is_empty() || !self.gone.is_empty()
    }

    /// Returns the row; `before` is the outcome of the check before.
    #[must_use]
    pub fn row(self, before: Option<i64>) -> Row {
        let moved = before.is_some_and(|before| before != self.nearest);
        let [grants, gone] = [self.grants, self.gone].map(|text| Value::Bytes(text.into_bytes()));
        Row(vec![grants, gone, Value::Int(moved.into()), Value::Int(self.nearest)])
    }
}

/// One check of `watch.sql`.
pub fn watch(database: &mut Database, batch: &[u8]) -> Watched {
    let (mut batch, now) = (Batch(batch), database.now_us);
    let mut watched = Watched { grants: String::new(), gone: String::new(), nearest: 8 };
    while let Some(name) = batch.name() {
        let request = batch.request();
        let key = (name.to_vec(), batch.slot(&request));
        let (queue_ttl, place, ahead) = (batch.number(), batch.number(), batch.request());
        let is_it = |entry: &&Entry| entry.request == ahead && entry.is_live(now);
        if database.waiters_of(name).any(|waiter| is_it(&waiter)) {
            let count = database.waiters_of(name).filter(|waiter| waiter.number < place).count().min(8);
            watched.nearest = watched.nearest.min(count.cast_signed() as i64);
        } else if database.holds_of(name).any(|hold| is_it(&hold)) {
            watched.nearest = 0;
        } else if let Some(hold) = database
            .holds
            .get_mut(&key)
            .filter(|hold| hold.request == request && hold.number > place && hold.is_live(now))
        {
            hold.expires_us = (hold.expires_us + 1).max(now + queue_ttl);
            write!(watched.grants, "{} {place} {} {queue_ttl},", hex(&request), hold.number).ok();
        } else {
            write!(watched.gone, "{},", hex(&ahead)).ok();
        }
    }
    watched
}
