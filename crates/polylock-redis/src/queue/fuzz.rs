//! Fuzz targets: the replies of the scripts, to which other programs can write the data.

use std::time::Duration;

use polylock_core::{FencingToken, HoldTerms, KeepAlive, Mode};
use redis::Value;

use super::{
    backend::read_keep_alive,
    inspect::{EntryParts, entry},
};

polylock_fuzz::fuzz_targets!(tests: queue_replies);

fn micros(lease: Duration) -> i64 {
    i64::try_from(lease.as_micros()).unwrap()
}

fn queue_replies(input: &[u8]) {
    let Ok(reply) = redis::parse_redis_value(input) else { return };
    match read_keep_alive(&reply) {
        Some(KeepAlive::Held { lease, terms: Some(HoldTerms { token, .. }) }) => {
            let Value::Array(parts) = &reply else { panic!("{reply:?}") };
            assert_eq!(parts[..2], [Value::Int(micros(lease)), Value::Int(token.as_i64())]);
        }
        Some(KeepAlive::Queued) => assert_eq!(reply, Value::Int(2)),
        Some(KeepAlive::Lost(_)) => {
            assert!(matches!(reply, Value::Int(0) | Value::BulkString(_)), "{reply:?}");
        }
        Some(other) => panic!("{other:?}"),
        None => assert!(!matches!(reply, Value::Int(0 | 2)), "{reply:?}"),
    }
    let parts = redis::from_redis_value::<(Vec<EntryParts>, Vec<EntryParts>)>(reply);
    for parts in parts.into_iter().flat_map(|(holders, waiters)| holders.into_iter().chain(waiters)) {
        let (token, mode) = (FencingToken::new(parts.0), parts.1);
        let Some(entry) = entry(parts) else { continue };
        let mode = u8::try_from(mode).ok().and_then(Mode::from_bits);
        assert_eq!((entry.token, Some(entry.mode)), (token, mode));
        assert!(!entry.label.contains(char::is_control) && !entry.owner.as_str().contains(char::is_control));
    }
}
