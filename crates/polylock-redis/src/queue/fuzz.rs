//! Fuzz targets: the replies of the scripts, to which other programs can write the data.

use std::time::Duration;

use polylock_core::{FencingToken, KeepAlive, Mode};
use redis::Value;

use super::{
    backend::read_keep_alive,
    inspect::{EntryParts, entry},
};

polylock_fuzz::fuzz_targets!(tests: queue_replies);

fn queue_replies(input: &[u8]) {
    let Ok(reply) = redis::parse_redis_value(input) else { return };
    let lease = Duration::from_secs(1);
    match read_keep_alive(lease, &reply) {
        Some(KeepAlive::Held { lease: held }) => assert_eq!((&reply, held), (&Value::Int(1), lease)),
        Some(KeepAlive::Queued) => assert_eq!(reply, Value::Int(2)),
        Some(_) | None => assert!(!matches!(reply, Value::Int(1 | 2)), "{reply:?}"),
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
