//! The calls of PostgreSQL. The files are `crates/polylock-sql/src/postgres/statements`.
//!
//! Notifications are sent when the call is committed, after all of its changes: each grant to the channel of the waiter's process, unless
//! that is the process whose release made it, and each break to the channel of all processes.

use polylock_sql::simulation::{Row, Value};

use super::{
    routines::{Claim, Claimed},
    rows::hex,
    statement::{Argument, Call, unhex},
    tables::{Database, Entry, Payload, text},
};

/// The end of the settings before a statement.
const SETTINGS: &str = "SET LOCAL jit = off;";

/// The first words of the statements that are no calls, and the routines of this model in their place.
const QUERIES: [(&str, &str); 6] = [
    ("SELECT notice FROM", "notice"),
    ("SELECT encode(hold.request", "handed"),
    ("SELECT encode(name", "broken"),
    ("SELECT pg_notify(", "notify"),
    ("SELECT pg_backend_pid()", "session"),
    ("SET LOCAL synchronous_commit = off;\nWITH stretch", "sweep"),
];

/// Parses the settings of a transaction and `SELECT * FROM "public".polylock_ROUTINE_VERSION(ARGUMENT, ...);`, or another statement.
#[must_use]
pub fn parse(text: &str) -> Option<Call<'_>> {
    if text.starts_with("LISTEN ") {
        let channels = text.split('"').skip(1).step_by(2);
        let arguments = channels.map(|channel| Argument::Bytes(channel.as_bytes().to_vec())).collect();
        return Some(Call { routine: "listen", arguments });
    }
    let statement = text.get(text.find(SETTINGS)? + SETTINGS.len()..)?.trim();
    if let Some((_, routine)) = QUERIES.iter().find(|(words, _)| statement.starts_with(words)) {
        let literals = statement.split("E'").skip(1).map(|rest| literal(rest.split_once('\'')?.0));
        return Some(Call { routine, arguments: literals.collect::<Option<_>>()? });
    }
    let (routine, rest) = statement.strip_prefix("SELECT * FROM \"public\".polylock_")?.split_once('(')?;
    let (routine, _) = routine.rsplit_once('_')?;
    let argument = |text: &str| {
        let text = text.trim().split("::").next()?;
        match text {
            "TRUE" => Some(Argument::Int(1)),
            "FALSE" => Some(Argument::Int(0)),
            text => match text.strip_prefix("E'") {
                None => text.parse().ok().map(Argument::Int),
                Some(rest) => literal(rest.strip_suffix('\'')?),
            },
        }
    };
    let arguments = rest.strip_suffix(");")?.split(',').map(argument).collect::<Option<_>>()?;
    Some(Call { routine, arguments })
}

/// Decodes the literal of a text, in which each byte is an escape, or that of bytes.
fn literal(escapes: &str) -> Option<Argument> {
    unhex(&escapes.replace(['\\', 'x'], "")).map(Argument::Bytes)
}

/// Executes a routine that concerns the tables. Returns its rows; `None` if there is no such routine.
pub fn execute(database: &mut Database, call: &Call<'_>) -> Option<Vec<Row>> {
    let now = database.now_us;
    Some(match (call.routine, &call.arguments[..]) {
        ("claim", arguments) => vec![claim(database, arguments)?],
        ("keep_alive", [batch, _]) => {
            vec![Row(vec![Value::Bytes(database.keep_alive(batch.bytes()).join(",").into_bytes())])]
        }
        ("release", [name, request, channel, refused, expiry]) => {
            let target = (name.bytes(), request.bytes());
            release(database, target, &text(channel.bytes()), (refused.int(), expiry.int()))
        }
        ("park", [name, request, token, left, _, refused, expiry]) => {
            let key = database.key_of((name.bytes(), request.bytes()));
            let target = (name.bytes(), request.bytes(), token.int());
            vec![database.park(target, key.as_ref(), (left.int(), refused.int()), expiry.int())]
        }
        ("break", [name, tokens, notice, force, channel, expiry]) => {
            let (tokens, force) = (text(tokens.bytes()), force.int() != 0);
            let rows = database.break_holds(name.bytes(), &tokens, notice.bytes(), force, expiry.int());
            if rows.len() > 1 {
                let name = hex(name.bytes()).to_lowercase();
                database.notifications.push((text(channel.bytes()), Payload::Other(name)));
            }
            if rows.len() > 1 && force {
                database.delete_expired_holds(name.bytes());
                let grants = database.settle(name.bytes(), None);
                grants.iter().for_each(|granted| database.notify(granted));
            }
            rows
        }
        ("convert", [name, request, from, to, _, in_way, held_conflicts, waiting, _, expiry]) => {
            let key = database.key_of((name.bytes(), request.bytes()));
            let target = (name.bytes(), request.bytes(), from.int());
            let modes = [to, in_way, held_conflicts, waiting].map(Argument::int);
            vec![database.convert(target, key.as_ref(), modes, expiry.int())]
        }
        ("notice", [name, request, ..]) => database.notice(name.bytes(), request.bytes()),
        ("handed", pairs) => {
            let pairs =
                pairs.chunks(2).filter_map(|pair| Some((pair.first()?.bytes(), pair.get(1)?.bytes())));
            let is_held = |pair| {
                let hold = database.key_of(pair).and_then(|key| database.holds.get(&key));
                hold.is_some_and(|hold| hold.is_live(now))
            };
            let held = pairs.filter(|pair| is_held(*pair));
            held.map(|(_, request)| Row(vec![Value::Bytes(request.to_vec())])).collect()
        }
        ("broken", _) => {
            let marked = database.holds.iter().map(|((name, _), hold)| (name, hold.notice.as_ref()));
            let removed = database.broken.iter().map(|((name, _), (notice, _))| (name, Some(notice)));
            let broken = marked.chain(removed).filter(|(_, notice)| notice.is_some_and(|it| !it.is_empty()));
            broken.map(|(name, _)| Row(vec![Value::Bytes(name.clone())])).collect()
        }
        ("notify", [channel]) => {
            database.notifications.push((text(channel.bytes()), Payload::Other("0".to_owned())));
            Vec::new()
        }
        ("sweep", _) => {
            database.sweep();
            Vec::new()
        }
        _ => return None,
    })
}

/// `claim.sql`.
fn claim(database: &mut Database, arguments: &[Argument]) -> Option<Row> {
    let [name, request, mode, modes, slot, owner, _, ttl, queue_ttl, channel, ticket, _, counts, expiry] =
        arguments
    else {
        return None;
    };
    let now = database.now_us;
    let entry = Entry {
        request: request.bytes().to_vec(),
        number: 0,
        mode: mode.int(),
        owner: text(owner.bytes()),
        expires_us: now + ttl.int(),
        notice: None,
        notifies: (text(channel.bytes()), ticket.int()),
    };
    let claimed = database.claim(Claim {
        key: (name.bytes(), slot.bytes()),
        entry,
        modes: modes.int(),
        ttls: (ttl.int(), queue_ttl.int()),
        expiry: expiry.int(),
    });
    let [token, left, place, ahead] = match claimed {
        Claimed::Expired => [None; 4],
        Claimed::Refused => [None, Some(1000), None, None],
        Claimed::Held(token, left) => [Some(token), Some(left), None, None],
        Claimed::Blocked { left, ahead, place, .. } => {
            [None, Some(left), place, (counts.int() == 1).then_some(ahead)]
        }
    };
    let values = [token, left, place, ahead, Some(now)];
    Some(Row(values.map(|value| value.map_or(Value::Null, Value::Int)).into()))
}

/// `release.sql`.
fn release(
    database: &mut Database,
    (name, request): (&[u8], &[u8]),
    channel: &str,
    limits: (i64, i64),
) -> Vec<Row> {
    let (clock, key) = (Value::Int(database.now_us), database.key_of((name, request)));
    let head = |found, notice| Row(vec![Value::Null, Value::Null, Value::Null, clock, found, notice]);
    let Some((found, notice)) = database.release((name, request), key, limits) else {
        return vec![head(Value::Null, Value::Null)];
    };
    let mut rows = vec![head(Value::Int(found.into()), notice)];
    database.delete_expired_holds(name);
    for granted in database.settle(name, None) {
        let (own, ticket) = &granted.notifies;
        if own == channel {
            let grant = [*ticket, granted.place, granted.token, granted.left].map(Value::Int);
            rows.push(Row(grant.into_iter().chain([Value::Null, Value::Null]).collect()));
        } else {
            database.notify(&granted);
        }
    }
    rows
}
