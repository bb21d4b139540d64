//! The state of the locks at a server, as its scripts have written it.

use polylock_core::LockName;

use super::{database::Database, packed::Packed};
use crate::simulation::live_entry::LiveEntry;

/// The namespace of the locks.
pub const NAMESPACE: &str = "polylock";

/// A live hold, or a vote.
#[derive(Debug)]
pub struct Held {
    /// The id of the request.
    pub request: Vec<u8>,
    /// The token, or the number.
    pub token: i64,
    /// The owner of the request.
    pub owner: Vec<u8>,
    /// The modes that conflict with it.
    conflicts: i64,
    /// The end of the lease by the server's clock, in microseconds; for a vote the greatest number.
    pub expires_us: i64,
}

/// Returns the lock with this key, if the key is that of its holds or its vote.
pub fn lock_of(key: &str) -> Option<LockName> {
    let (tag, name) = key.split_at_checked(NAMESPACE.len() + 5)?;
    (tag.ends_with(":h:") || tag.ends_with(":r:")).then(|| LockName::from_store(name).ok())?
}

/// Returns the live holds, or the vote, at `key`.
pub fn held(database: &mut Database, key: &str) -> Vec<Held> {
    let now = database.now_us;
    if key.contains("}:r:") {
        // {number, since, owner, label}, after the id of the request.
        let vote = database.read(&["GET"], key).pop().unwrap_or_default();
        let (request, mut packed) = vote.split_at_checked(16).unwrap_or_default();
        let held = Packed::unpack(&mut packed).and_then(|vote| {
            let (token, owner) = (vote.number(0)?, vote.text(2)?);
            Some(Held { request: request.to_vec(), token, owner, conflicts: 0, expires_us: i64::MAX })
        });
        return held.into_iter().collect();
    }
    // {token, mode, conflicts, since, expires, owner, ...}
    let hold = |(request, hold): (Vec<u8>, Packed)| {
        let (token, owner) = (hold.number(0)?, hold.text(5)?);
        Some(Held { request, token, owner, conflicts: hold.number(2)?, expires_us: hold.number(4)? })
    };
    entries(database, key).into_iter().filter_map(hold).filter(|hold| hold.expires_us > now).collect()
}

/// Returns the live entries of a server: holds, votes, and requests in queues.
pub fn live(database: &mut Database) -> Vec<LiveEntry> {
    let mut live = Vec::new();
    for (name, key) in ["h", "r"].iter().flat_map(|kind| keys(database, kind)).collect::<Vec<_>>() {
        live.extend(held(database, &key).into_iter().map(|Held { token, owner, .. }| LiveEntry {
            name: name.clone(),
            token: Some(token.cast_unsigned()),
            is_free_to_go: false,
            owner: String::from_utf8(owner).ok(),
        }));
    }
    let now = Some(database.now_us);
    for (name, queue) in keys(database, "q") {
        let key = |kind: char| format!("{{{NAMESPACE}}}:{kind}:{}", name.as_str());
        let mut conflicts = held(database, &key('h')).iter().fold(0, |all, hold| all | hold.conflicts);
        let waiters = entries(database, &key('w'));
        for id in database.read(&["ZRANGE", "0", "-1"], &queue) {
            // {mode, conflicts, since, expires, channel, ticket, owner, ...}
            let waiter = waiters.iter().find(|(it, _)| *it == id);
            let Some((_, waiter)) = waiter.filter(|(_, waiter)| waiter.number(3) > now) else { continue };
            let is_free_to_go = waiter.number(0).unwrap_or(0) & conflicts == 0;
            conflicts |= waiter.number(1).unwrap_or(0);
            let owner = waiter.text(6).and_then(|owner| String::from_utf8(owner).ok());
            live.push(LiveEntry { name: name.clone(), token: None, is_free_to_go, owner });
        }
    }
    live
}

/// Returns the locks with a key of this kind, and these keys.
fn keys(database: &mut Database, kind: &str) -> Vec<(LockName, String)> {
    let prefix = format!("{{{NAMESPACE}}}:{kind}:");
    let names = database.names(&prefix).into_iter();
    names.filter_map(|name| Some((LockName::from_store(&name).ok()?, format!("{prefix}{name}")))).collect()
}

/// Returns the entries of a hash, by field.
fn entries(database: &mut Database, key: &str) -> Vec<(Vec<u8>, Packed)> {
    let flat = database.read(&["HGETALL"], key);
    flat.chunks(2)
        .filter_map(|pair| Some((pair[0].clone(), Packed::unpack(&mut pair.get(1)?.as_slice())?)))
        .collect()
}
