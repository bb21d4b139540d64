//! Listing many locks.

use std::time::Duration;

use ::redis::Script;
use polylock_integration_tests::{clock::now, servers::redis};

use super::Namespace;

/// Far more than are inspected at a time.
const MANY: usize = 10_000;

/// Holds in the store's format, of unknown requests.
const HOLDS: &str = "
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    for i = 1, ARGV[1] do
        local entry = cmsgpack.pack({i, 32, 62, now, now + 60000000, 'owner', 'label'})
        redis.call('HSET', KEYS[1] .. i, string.rep('x', 16), entry)
        redis.call('PEXPIRE', KEYS[1] .. i, 61000)
    end";

/// Each script of a list has its own time limit, and only a few are in flight. If all were sent at once, a later operation
/// would wait for all of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_many_locks_does_not_delay_other_operations() {
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let locks = namespace.locks().await;
    let mut raw = super::connect(server.url()).await;
    Script::new(HOLDS).key(namespace.key("h:n")).arg(MANY).invoke_async::<()>(&mut raw).await.unwrap();

    let began = now();
    let listing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.list("").await }
    });
    let mut took = Vec::new();
    while !listing.is_finished() {
        let sent = now();
        locks.lock("mine").try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
        took.push(now().since(sent));
    }
    let listed = listing.await.unwrap().unwrap();
    took.sort_unstable();
    let (pairs, median) = (took.len(), took[took.len() / 2]);
    println!("{MANY} locks in {:.1?}, and {pairs} pairs, their median {median:.1?}", now().since(began));
    let held = listed.iter().filter(|lock| lock.name.as_str() != "mine");
    assert_eq!(held.clone().count(), MANY);
    assert!(held.clone().all(|lock| lock.holders.len() == 1) && held.is_sorted_by_key(|lock| &lock.name));
    // A busy machine may delay some.
    assert!(pairs > 10 && median < Duration::from_millis(400), "{pairs} pairs, their median {median:.1?}");
}
