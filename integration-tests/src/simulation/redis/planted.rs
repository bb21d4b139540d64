//! The planted bugs of the real stores: lines of the scripts that are changed at the server.

use super::scripts::Changes;
use crate::simulation::plan::Planted;

/// Returns the changes of the scripts for a bug; none for a bug of another kind.
#[must_use]
pub const fn changes(planted: Option<Planted>) -> Changes {
    let Some(planted) = planted else { return &[] };
    match planted {
        Planted::RedisLateClaim => &[
            ("if now < tonumber(ARGV[10]) then", "if true then"),
            ("if now >= tonumber(ARGV[10]) then", "if false then"),
            ("if refused_until(id) > now or notice_for(id) then", "if notice_for(id) then"),
        ],
        Planted::RedisUncheckedClaim => {
            &[("if not place and bit.band(mode, ahead) == 0 then", "if not place then")]
        }
        Planted::RedisUncheckedHandover => &[("    settle(conflicts)\n", "    settle(0)\n")],
        Planted::RedisForeignRelease => &[
            ("redis.call('HDEL', KEYS[1], ARGV[1])", "redis.call('DEL', KEYS[1])"),
            ("local removed = redis.call('HDEL', HOLDS, id)", "local removed = redis.call('DEL', HOLDS)"),
        ],
        Planted::RedisNoFallback => &[(
            "mine, ahead = settle(ahead, id, ttl)",
            "if redis.call('EXISTS', QUEUE) == 1 then mine, ahead = nil, EVERYBODY end",
        )],
        Planted::RedisFalseRenewal => &[
            ("        entry[5] = math.max(entry[5], now + ttl)\n        prolong", "        prolong"),
            ("return {entry[5] - now, entry[1], entry[2]}", "return {ttl, entry[1], entry[2]}"),
        ],
        Planted::RedisEarlyToken => &[(
            "local token, left = draw(), waiter[4] - now",
            "local token, left = tonumber(place), waiter[4] - now",
        )],
        Planted::RedisLostNotification => {
            &[("return redis.call(is_in_slot and 'SPUBLISH' or 'PUBLISH', channel, message)", "return 1")]
        }
        Planted::RedisShorteningRenewal => {
            &[("entry[5] = math.max(entry[5], now + ttl)", "entry[5] = now + ttl")]
        }
        Planted::RedisRevivedPark => &[(
            "        if entry[8] then\n            return",
            "        if entry[8] and entry[8] ~= '' then\n            return",
        )],
        Planted::RedisForgottenCopies => &[("refuse(id, ARGV[2], ARGV[3])", "refuse(id, ARGV[2], '0')")],
        Planted::RedisUntargetedBreak => &[("if targets[entry[1]] then", "if true then")],
        Planted::RedlockUntargetedBreak => {
            &[("if value and entry[1] == number then\n    local left", "if value then\n    local left")]
        }
        Planted::RedlockLiveVote => &[("is_of(id) and (number == 0 or entry[1] <= number)", "is_of(id)")],
        Planted::RedlockUnmarkedVote => &[(
            "return {YES, number, tonumber(ttl), now, member, ''}",
            "return {number % 4 == 0 and TOO_FAR or YES, number, tonumber(ttl), now, member, ''}",
        )],
        Planted::RedlockLateProposal => &[("if number <= last then", "if false then")],
        Planted::RedlockForeignRelease => &[("local removed = is_of(id) and", "local removed = value and")],
        Planted::RedlockSecondVote => &[("if value and not is_of(id) then", "if false then")],
        // Otherwise a copy is noticed by its identity.
        Planted::RedlockTrustedFile => &[
            ("if not state or known_run ~= run then", "if not state then"),
            ("return now - since > 2 * keep and known or ''", "return ''"),
        ],
        Planted::RedlockFalseAcknowledgement => {
            &[("    redis.call('DEL', VOTE)\nend\nif number", "end\nif number")]
        }
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use clap::ValueEnum;

    use super::{Planted, changes};

    /// A text that a script does not contain any more plants nothing, and a bug of several changes may be found all the same.
    #[test]
    fn every_change_is_that_of_a_line_in_a_script() {
        let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/polylock-redis/src");
        let files =
            ["queue", "redlock"].map(|store| fs::read_dir(client.join(store).join("scripts")).unwrap());
        let scripts: Vec<String> = files
            .into_iter()
            .flatten()
            .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
            .collect();
        for planted in Planted::value_variants() {
            for (from, _) in changes(Some(*planted)) {
                assert!(scripts.iter().any(|script| script.contains(from)), "{planted:?}: {from}");
            }
        }
    }
}
