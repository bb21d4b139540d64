//! Fuzz targets: the replies of the scripts, to which other programs can write the data, and the numbers in them.

use std::time::Duration;

use polylock_core::{LockName, Moment};

use super::{
    inspect::{StatusParts, read_status},
    membership::{Membership, Observed},
    numbers::Numbers,
};

polylock_fuzz::fuzz_targets!(tests: redlock_replies, memberships, numbers);

fn redlock_replies(input: &[u8]) {
    let Ok(reply) = redis::parse_redis_value(input) else { return };
    let Ok(parts) = redis::from_redis_value::<StatusParts>(reply) else { return };
    let counts = (parts.0.len().min(1), parts.1.len());
    let status = read_status(parts);
    assert_eq!((status.holder.iter().len(), status.waiters.len()), counts);
    for entry in status.holder.iter().chain(status.waiters.iter().map(|(_, entry)| entry)) {
        assert!(!entry.label.contains(char::is_control) && !entry.owner.as_str().contains(char::is_control));
    }
}

fn memberships(input: &[u8]) {
    const DELAY: Duration = Duration::from_secs(7);
    let text = String::from_utf8_lossy(input);
    let (mut membership, mut now) = (Membership::default(), Moment::default());
    for line in text.lines() {
        let (run, reply) = line.split_once('|').unwrap_or(("", line));
        let observed = membership.observe(run, reply, now);
        let remaining = membership.remaining(DELAY, now);
        assert_eq!(remaining.is_none(), observed == Observed::Counts);
        assert!(remaining <= Some(DELAY), "{remaining:?}");
        drop((membership.argument(run, "f", DELAY, now), membership.admission_argument(run, "f", DELAY)));
        now = now + Duration::from_secs(1);
    }
}

fn numbers(input: &[u8]) {
    let (numbers, names) = (Numbers::default(), ["a", "b"].map(|name| LockName::new(name).unwrap()));
    let received = input.chunks_exact(8).map(|bytes| i64::from_be_bytes(bytes.try_into().unwrap()));
    let received: Vec<i64> = received.collect();
    let mut greatest = [0; 2];
    for (round, replies) in received.chunks(6).enumerate() {
        let (clocks, accepted) = replies.split_at(replies.len() / 2);
        let (name, greatest) = (&names[round % 2], &mut greatest[round % 2]);
        *greatest = numbers.follow(name, accepted, 1, clocks.to_vec()).max(*greatest);
        if let Some(number) = numbers.next(name, clocks.to_vec()) {
            assert!(number > *greatest, "{number} after {greatest}");
            *greatest = number;
        }
    }
}
