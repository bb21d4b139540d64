//! Breaks: their cost, their end, and the state that they leave.

use std::time::Duration;

use futures_util::future::{join, join_all};
use polylock::{Fault, Guard, Locks, LostReason};
use polylock_core::BreakNotice;
use polylock_integration_tests::{
    clock::{TIMEOUT, now, pause, until},
    process::Process,
    refusals::describe,
    servers::zookeeper,
    stores::wait_for_waiters,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use zookeeper_client::{Acls, Client, CreateMode};

use super::{Namespace, SLACK};

/// Two ticks of the servers.
const TICKS: Duration = Duration::from_millis(400);

/// The time limit for a step that needs neither a renewal nor the end of a session of a minute.
const SOON: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(60);

fn notice(reason: &LostReason) -> &BreakNotice {
    let LostReason::Broken(notice) = reason else { panic!("{reason:?}") };
    notice
}

/// Checks that the guard reports a break with this reason.
async fn check_broken(guard: &Guard, reason: &str) {
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("notified without a renewal");
    assert_eq!(
        notice(&lost).reason.as_ref().map(|reason| reason.as_str().to_owned()).as_deref(),
        Some(reason)
    );
}

/// Its process and its session are alive.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_does_not_stop_keeps_the_lock_until_its_lease_ends() {
    const SESSION: Duration = Duration::from_secs(6);
    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let there = Locks::connect(&namespace.url).await.unwrap();
    let here = Locks::connect(&namespace.url_with_session(SESSION)).await.unwrap();
    let guard = here.lock("n").acquire().await.unwrap();
    // The session limits the default lease of 30 s.
    let lease = SESSION / 2;
    assert!(guard.remaining() <= lease);
    assert_eq!(there.inspect("n").await.unwrap().holders[0].expires_in, lease);
    assert_eq!(there.break_lock("n").reason("it hangs").await.unwrap().len(), 1);
    let marked = now();
    check_broken(&guard, "it hangs").await;
    let next = tokio::time::timeout(TIMEOUT, there.lock("n").acquire())
        .await
        .expect("the waiter is granted the lock")
        .unwrap();
    let took = now().since(marked);
    println!("free {took:.2?} after the break; its lease was {lease:?}");
    assert!(took < lease + SLACK, "{took:?}");
    next.release().await.unwrap();
    // The same session is still alive.
    here.lock("n").acquire().await.unwrap().release().await.unwrap();
    assert!(guard.release().await.is_err());
    namespace.wait_until_empty().await;
}

/// The watch of the next waiter fires, because a break changes the data of the holder's node.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_granted_only_after_the_holder_stops() {
    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let [here, there] = [namespace.url_with_session(LONG), namespace.url_with_session(LONG)];
    let (here, there) = (Locks::connect(&here).await.unwrap(), Locks::connect(&there).await.unwrap());
    let guard = here.lock("n").acquire().await.unwrap();
    let mut next = tokio::spawn(there.lock("n").acquire());
    wait_for_waiters(&here, "n", 1).await;
    let watches = async || {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
        stream.write_all(b"mntr").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.lines().find_map(|line| line.strip_prefix("zk_watch_count\t")?.parse::<usize>().ok()).unwrap()
    };
    // Both sessions watch the announcement of breaks, and the waiter watches the holder.
    until("it watches the holder", async || watches().await == 3).await;
    assert_eq!(here.break_lock("n").reason("stop").await.unwrap().len(), 1);
    check_broken(&guard, "stop").await;
    let early = tokio::time::timeout(Duration::from_secs(2), &mut next).await;
    assert!(early.is_err(), "the holder may still be working");
    assert!(guard.release().await.is_err());
    let next =
        tokio::time::timeout(TIMEOUT, next).await.expect("the waiter is granted the lock").unwrap().unwrap();
    next.release().await.unwrap();
    namespace.wait_until_empty().await;
}

/// Its node is deleted only by the servers, with its session.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_process_keeps_the_lock_until_its_session_ends() {
    const SESSION: Duration = Duration::from_secs(4);
    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let locks = Locks::connect(&namespace.url).await.unwrap();
    let arguments = ["hold", &namespace.url_with_session(SESSION), "n", "1"];
    let mut holder = Process::start(env!("CARGO_BIN_EXE_worker"), arguments);
    holder.expect_line("held");
    holder.stop();
    assert_eq!(locks.break_lock("n").await.unwrap().len(), 1);
    let marked = now();
    assert!(locks.lock("n").try_acquire().await.unwrap().is_none(), "the holder may still be working");
    let next = tokio::time::timeout(TIMEOUT, locks.lock("n").acquire())
        .await
        .expect("the waiter is granted the lock")
        .unwrap();
    let took = now().since(marked);
    println!("free {took:.2?} after the break; its session timeout was {SESSION:?}");
    assert!(took < SESSION + TICKS + SLACK, "{took:?}");
    holder.resume();
    next.release().await.unwrap();
    holder.kill();
}

/// A forced break waits neither for the lease nor for the session.
#[tokio::test(flavor = "multi_thread")]
async fn forced_on_many_readers_reach_all_of_them_by_one_node() {
    const READERS: usize = 300;
    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let raw = namespace.client().await;
    let (here, there) = (
        Locks::connect(&namespace.url_with_session(LONG)).await.unwrap(),
        Locks::connect(&namespace.url_with_session(LONG)).await.unwrap(),
    );
    let readers = join_all((0..READERS).map(|_| here.lock("n").shared().acquire())).await;
    let readers: Vec<_> = readers.into_iter().map(Result::unwrap).collect();
    let writer = tokio::spawn(there.lock("n").acquire());
    wait_for_waiters(&there, "n", 1).await;
    let entries = there.break_lock("n").reason("the house burns").force().await.unwrap();
    assert_eq!(entries.len(), READERS, "the writer was a waiter");
    join_all(readers.iter().map(|reader| check_broken(reader, "the house burns"))).await;
    let writer =
        tokio::time::timeout(SOON, writer).await.expect("the waiter is granted the lock").unwrap().unwrap();
    for reader in readers {
        assert!(reader.release().await.is_err());
    }
    writer.release().await.unwrap();
    let left = raw.list_children(&namespace.root).await.unwrap();
    assert!(left.iter().all(|child| ["n", ".breaks"].contains(&child.as_str())), "{left:?}");
    namespace.wait_until_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_concurrent_breaks_return_the_same_notice() {
    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let open = async || Locks::connect(&namespace.url_with_session(LONG)).await.unwrap();
    let (here, one, other) = (open().await, open().await, open().await);
    for _ in 0..20 {
        let guard = here.lock("n").acquire().await.unwrap();
        let orders = [one.break_lock("n").reason("one"), other.break_lock("n").reason("other")];
        let [first, second] = orders.map(IntoFuture::into_future);
        let began = now();
        let both = join(first, second).await;
        let reasons = [both.0.unwrap(), both.1.unwrap()].map(|entries| {
            let [entry] = &entries[..] else { panic!("one holder: {entries:?}") };
            entry.broken.clone().expect("a notice").reason.expect("a reason").as_str().to_owned()
        });
        assert_eq!(reasons[0], reasons[1]);
        check_broken(&guard, &reasons[0]).await;
        println!("notified {:.1?} after the break", now().since(began));
        drop(guard);
        let next =
            tokio::time::timeout(SOON, here.lock("n").acquire()).await.expect("the lock is free").unwrap();
        next.release().await.unwrap();
    }
    namespace.wait_until_empty().await;
}

/// Creates a node with the name of a request and these data, in another session.
async fn create_foreign_node(raw: &Client, namespace: &Namespace, lock: &str, data: &[u8], mode: CreateMode) {
    raw.mkdir(&format!("{}/{lock}", namespace.root), &CreateMode::Persistent.with_acls(Acls::anyone_all()))
        .await
        .unwrap();
    let path = format!("{}/{lock}/{:032x}_EX_", namespace.root, 7);
    raw.create(&path, data, &mode.with_acls(Acls::anyone_all())).await.unwrap();
}

/// Written by a newer version, or by hand.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_foreign_data_is_listed_and_only_deleted_by_force() {
    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let (locks, raw) =
        (Locks::connect(&namespace.url_with_session(LONG)).await.unwrap(), namespace.client().await);
    let modes = [CreateMode::EphemeralSequential, CreateMode::PersistentSequential];
    let data: [&[u8]; 4] = [b"", b"{\"version\": 7}", b"\xff\xff", b"9\n\nx"];
    for (number, (data, mode)) in data.into_iter().flat_map(|data| modes.map(|mode| (data, mode))).enumerate()
    {
        let lock = format!("n{number}");
        create_foreign_node(&raw, &namespace, &lock, data, mode).await;
        assert!(locks.lock(&lock).try_acquire().await.unwrap().is_none(), "the node excludes other requests");
        pause(Duration::from_millis(20)).await;
        let status = locks.inspect(&lock).await.unwrap();
        let [holder] = &status.holders[..] else { panic!("one holder: {status:?}") };
        assert!(holder.age >= Duration::from_millis(15) && holder.age < LONG, "{:?}", holder.age);
        let has_known_data = data == b"9\n\nx";
        assert_eq!(holder.owner.as_str() == "unknown", !has_known_data, "{holder:?}");
        assert_eq!(locks.list(&lock).await.unwrap().len(), 1);
        let waiting = tokio::spawn(locks.lock(&lock).acquire());
        wait_for_waiters(&locks, &lock, 1).await;
        let marked = locks.break_lock(&lock).await;
        if has_known_data {
            assert_eq!(marked.unwrap().len(), 1);
        } else {
            let (fault, text) = describe(&marked.expect_err("no holder would read the notice"));
            assert!(fault == Some(Fault::Permanent) && text.contains("break it with force"), "{text}");
        }
        assert!(!waiting.is_finished());
        assert_eq!(locks.break_lock(&lock).force().await.unwrap().len(), 1);
        let next = tokio::time::timeout(SOON, waiting)
            .await
            .expect("the waiter is granted the lock")
            .unwrap()
            .unwrap();
        next.release().await.unwrap();
    }
}

/// A user that may not write the announcement can still break its locks; the holders are notified by a renewal.
#[tokio::test(flavor = "multi_thread")]
async fn locks_can_be_broken_though_the_announcement_is_refused() {
    const SESSION: Duration = Duration::from_secs(9);
    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let raw = namespace.client().await;
    let locks = Locks::connect(&namespace.url_with_session(SESSION)).await.unwrap();
    raw.create(
        &format!("{}/.breaks", namespace.root),
        b"",
        &CreateMode::Persistent.with_acls(Acls::anyone_read()),
    )
    .await
    .unwrap();
    for force in [false, true] {
        let guard = locks.lock("n").acquire().await.unwrap();
        let order = locks.break_lock("n").reason("a reason");
        assert_eq!(if force { order.force() } else { order }.await.unwrap().len(), 1);
        let lost = tokio::time::timeout(SESSION, guard.lost()).await.expect("notified by the next renewal");
        assert_eq!(lost == LostReason::Gone, force, "a deleted node has no notice: {lost:?}");
        drop(guard);
        let next =
            tokio::time::timeout(SOON, locks.lock("n").acquire()).await.expect("the lock is free").unwrap();
        next.release().await.unwrap();
    }
}

/// Counts the packets of acquisitions, renewals and releases, to which breaks add nothing.
#[tokio::test(flavor = "multi_thread")]
async fn add_no_packets_to_acquisitions_and_renewals() {
    const PAIRS: u64 = 200;
    const SESSION: Duration = Duration::from_secs(6);
    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let locks = Locks::connect(&namespace.url_with_session(SESSION)).await.unwrap();
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    // The session's own: a ping after half a second of silence, a `sync` every sixteenth of its timeout, the query of the count, and a
    // transaction for a lease whose last `sync` was late. A break mechanism would add at least one packet to each operation.
    let of_session = |began, operations: u64| {
        let elapsed = now().since(began).as_millis();
        let syncs = elapsed / (SESSION.as_millis() / 16);
        u64::try_from(elapsed / 500 + syncs).unwrap() + 3 + operations / 4
    };
    let (began, before) = (now(), zookeeper::packets(&server).await);
    for _ in 0..PAIRS {
        locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    }
    let packets = zookeeper::packets(&server).await - before;
    println!("{packets} packets for {PAIRS} pairs");
    assert!(
        (3 * PAIRS..=3 * PAIRS + of_session(began, PAIRS)).contains(&packets),
        "create, list, delete: {packets}"
    );

    let guards: Vec<_> = join_all((0..50).map(|number| locks.lock(format!("n{number}")).acquire())).await;
    let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    let (began, before) = (now(), zookeeper::packets(&server).await);
    let mut renewals = 0;
    while now().since(began) < SESSION {
        renewals += join_all(guards.iter().map(Guard::renewed)).await.len() as u64;
    }
    let packets = zookeeper::packets(&server).await - before;
    println!("{packets} packets for {renewals} renewals");
    // Some packets belong to the next round of renewals.
    assert!(packets <= renewals + guards.len() as u64 + of_session(began, renewals), "one each: {packets}");
}
