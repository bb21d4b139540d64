//! Listing many locks.

use std::time::Duration;

use ::redis::Script;
use polylock_integration_tests::{clock::now, servers::redis};

use crate::{SLACK, Spot};

/// Far more than are inspected at a time.
const MANY: usize = 10_000;

/// Holds as the store writes them, of requests that nobody has.
const HOLDS: &str = "
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    for i = 1, ARGV[1] do
        local entry = cmsgpack.pack({i, 32, 62, now, now + 60000000, 'owner', 'label'})
        redis.call('HSET', KEYS[1] .. i, string.rep('x', 16), entry)
        redis.call('PEXPIRE', KEYS[1] .. i, 61000)
    end";

/// Each script of a list has a time limit of its own, and is one of a few that are under way. If all were sent at once, an operation
/// that comes after them would be answered after all of them.
#[tokio::test(flavor = "multi_thread")]
async fn of_many_locks_does_not_delay_other_operations_of_the_same_store() {
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let locks = spot.locks().await;
    let mut raw = crate::raw(server.url()).await;
    Script::new(HOLDS).key(spot.key("h:n")).arg(MANY).invoke_async::<()>(&mut raw).await.unwrap();

    let began = now();
    let listing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.list("").await }
    });
    let (mut slowest, mut pairs) = (Duration::ZERO, 0);
    while !listing.is_finished() {
        let sent = now();
        locks.lock("mine").try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
        slowest = slowest.max(now().since(sent));
        pairs += 1;
    }
    let listed = listing.await.unwrap().unwrap();
    println!("{MANY} locks in {:.1?}, and {pairs} pairs, the slowest {slowest:.1?}", now().since(began));
    let held = listed.iter().filter(|lock| lock.name.as_str() != "mine");
    assert_eq!(held.clone().count(), MANY);
    assert!(held.clone().all(|lock| lock.holders.len() == 1) && held.is_sorted_by_key(|lock| &lock.name));
    assert!(pairs > 10 && slowest < SLACK, "{pairs} pairs, the slowest took {slowest:.1?}");
}
