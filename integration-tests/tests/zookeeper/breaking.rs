//! Breaks: what they cost, how they end, and what they leave.

use std::time::Duration;

use futures_util::future::{join, join_all};
use polylock::{Fault, Guard, Locks, LostReason};
use polylock_core::BreakNotice;
use polylock_integration_tests::{
    clock::{PATIENCE, now, pause, until},
    process::Process,
    refusals::told,
    servers::zookeeper,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use zookeeper_client::{Acls, Client, CreateMode};

use crate::{SLACK, Spot, waiters};

/// Two ticks of the servers.
const TICKS: Duration = Duration::from_millis(400);

/// What needs neither a renewal nor the end of a session of a minute.
const SOON: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(60);

fn notice(reason: &LostReason) -> &BreakNotice {
    let LostReason::Broken(notice) = reason else { panic!("{reason:?}") };
    notice
}

/// What `locks` has at `name`, broken by `by`.
async fn broken(guard: &Guard, reason: &str) {
    let lost = tokio::time::timeout(SOON, guard.lost()).await.expect("notified without a renewal");
    assert_eq!(
        notice(&lost).reason.as_ref().map(|reason| reason.as_str().to_owned()).as_deref(),
        Some(reason)
    );
}

/// Its process lives, and so does its session.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_does_not_stop_has_the_lock_to_the_end_of_its_lease() {
    const SESSION: Duration = Duration::from_millis(3000);
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let there = Locks::connect(&spot.url).await.unwrap();
    let here = Locks::connect(&spot.with(SESSION)).await.unwrap();
    let guard = here.lock("n").acquire().await.unwrap();
    // What the session allows of the default of 30 s.
    let lease = SESSION * 2 / 3;
    assert!(guard.remaining() <= lease);
    assert_eq!(there.inspect("n").await.unwrap().holders[0].expires_in, lease);
    assert_eq!(there.break_lock("n").reason("it hangs").await.unwrap().len(), 1);
    let marked = now();
    broken(&guard, "it hangs").await;
    let next =
        tokio::time::timeout(PATIENCE, there.lock("n").acquire()).await.expect("it is served").unwrap();
    let took = now().since(marked);
    println!("free {took:.2?} after the break; its lease was {lease:?}");
    assert!(took < lease + SLACK, "{took:?}");
    next.release().await.unwrap();
    // Of the same session, which lives on.
    here.lock("n").acquire().await.unwrap().release().await.unwrap();
    assert!(guard.release().await.is_err());
    spot.is_clean().await;
}

/// The watch of the next one fires, because a break is written into the node of the holder.
#[tokio::test(flavor = "multi_thread")]
async fn does_not_let_a_waiter_pass_before_the_holder_stops() {
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let [here, there] = [spot.with(LONG), spot.with(LONG)];
    let (here, there) = (Locks::connect(&here).await.unwrap(), Locks::connect(&there).await.unwrap());
    let guard = here.lock("n").acquire().await.unwrap();
    let mut next = tokio::spawn(there.lock("n").acquire());
    waiters(&here, "n", 1).await;
    let watches = async || {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
        stream.write_all(b"mntr").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.lines().find_map(|line| line.strip_prefix("zk_watch_count\t")?.parse::<usize>().ok()).unwrap()
    };
    // Those of both sessions on the announcement of breaks, and that of the waiter.
    until("it watches the holder", async || watches().await == 3).await;
    assert_eq!(here.break_lock("n").reason("stop").await.unwrap().len(), 1);
    broken(&guard, "stop").await;
    let early = tokio::time::timeout(Duration::from_secs(2), &mut next).await;
    assert!(early.is_err(), "the holder may still be at work");
    assert!(guard.release().await.is_err());
    let next = tokio::time::timeout(PATIENCE, next).await.expect("its turn comes").unwrap().unwrap();
    next.release().await.unwrap();
    spot.is_clean().await;
}

/// Nobody deletes its node: the servers do with its session.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_hangs_has_the_lock_to_the_end_of_its_session() {
    const SESSION: Duration = Duration::from_secs(4);
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let locks = Locks::connect(&spot.url).await.unwrap();
    let arguments = ["hold", &spot.with(SESSION), "n", "1"];
    let mut holder = Process::start(env!("CARGO_BIN_EXE_worker"), arguments);
    holder.hears("held");
    holder.stop();
    assert_eq!(locks.break_lock("n").await.unwrap().len(), 1);
    let marked = now();
    assert!(locks.lock("n").try_acquire().await.unwrap().is_none(), "it may still be at work");
    let next =
        tokio::time::timeout(PATIENCE, locks.lock("n").acquire()).await.expect("it is served").unwrap();
    let took = now().since(marked);
    println!("free {took:.2?} after the break; its session was for {SESSION:?}");
    assert!(took < SESSION + TICKS + SLACK, "{took:?}");
    holder.go_on();
    next.release().await.unwrap();
    holder.kill();
}

/// And `force` does not wait for either.
#[tokio::test(flavor = "multi_thread")]
async fn by_force_all_who_hold_together_find_the_notice_in_one_node() {
    const READERS: usize = 300;
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let raw = spot.raw().await;
    let (here, there) =
        (Locks::connect(&spot.with(LONG)).await.unwrap(), Locks::connect(&spot.with(LONG)).await.unwrap());
    let readers = join_all((0..READERS).map(|_| here.lock("n").shared().acquire())).await;
    let readers: Vec<_> = readers.into_iter().map(Result::unwrap).collect();
    let writer = tokio::spawn(there.lock("n").acquire());
    waiters(&there, "n", 1).await;
    let entries = there.break_lock("n").reason("the house burns").force().await.unwrap();
    assert_eq!(entries.len(), READERS, "the writer was no holder then");
    join_all(readers.iter().map(|reader| broken(reader, "the house burns"))).await;
    let writer = tokio::time::timeout(SOON, writer).await.expect("it is served").unwrap().unwrap();
    for reader in readers {
        assert!(reader.release().await.is_err());
    }
    writer.release().await.unwrap();
    let left = raw.list_children(&spot.root).await.unwrap();
    assert!(left.iter().all(|child| ["n", ".breaks"].contains(&child.as_str())), "{left:?}");
    spot.is_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_at_once_one_notice_counts_for_both() {
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let open = async || Locks::connect(&spot.with(LONG)).await.unwrap();
    let (here, one, other) = (open().await, open().await, open().await);
    for _ in 0..20 {
        let guard = here.lock("n").acquire().await.unwrap();
        let orders = [one.break_lock("n").reason("one"), other.break_lock("n").reason("other")];
        let [first, second] = orders.map(IntoFuture::into_future);
        let began = now();
        let both = join(first, second).await;
        let reasons = [both.0.unwrap(), both.1.unwrap()].map(|entries| {
            let [entry] = &entries[..] else { panic!("one holder: {entries:?}") };
            entry.broken.clone().expect("it is marked").reason.expect("a reason").as_str().to_owned()
        });
        assert_eq!(reasons[0], reasons[1]);
        broken(&guard, &reasons[0]).await;
        println!("notified {:.1?} after the order", now().since(began));
        drop(guard);
        let next = tokio::time::timeout(SOON, here.lock("n").acquire()).await.expect("it is free").unwrap();
        next.release().await.unwrap();
    }
    spot.is_clean().await;
}

/// Makes a node that looks like a request's, with these data, in a session of its own.
async fn stranger(raw: &Client, spot: &Spot, lock: &str, data: &[u8], mode: CreateMode) {
    raw.mkdir(&format!("{}/{lock}", spot.root), &CreateMode::Persistent.with_acls(Acls::anyone_all()))
        .await
        .unwrap();
    let path = format!("{}/{lock}/{:032x}_EX_", spot.root, 7);
    raw.create(&path, data, &mode.with_acls(Acls::anyone_all())).await.unwrap();
}

/// What a newer version may write, or somebody by hand.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_only_looks_like_a_request_is_shown_and_deleted_by_force_alone() {
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let (locks, raw) = (Locks::connect(&spot.with(LONG)).await.unwrap(), spot.raw().await);
    let modes = [CreateMode::EphemeralSequential, CreateMode::PersistentSequential];
    let data: [&[u8]; 4] = [b"", b"{\"version\": 7}", b"\xff\xff", b"9\n\nx"];
    for (number, (data, mode)) in data.into_iter().flat_map(|data| modes.map(|mode| (data, mode))).enumerate()
    {
        let lock = format!("n{number}");
        stranger(&raw, &spot, &lock, data, mode).await;
        assert!(locks.lock(&lock).try_acquire().await.unwrap().is_none(), "it keeps others out");
        pause(Duration::from_millis(20)).await;
        let status = locks.inspect(&lock).await.unwrap();
        let [holder] = &status.holders[..] else { panic!("one holder: {status:?}") };
        assert!(holder.age >= Duration::from_millis(15) && holder.age < LONG, "{:?}", holder.age);
        let is_ours = data == b"9\n\nx";
        assert_eq!(holder.owner.as_str() == "unknown", !is_ours, "{holder:?}");
        assert_eq!(locks.list(&lock).await.unwrap().len(), 1);
        let waiting = tokio::spawn(locks.lock(&lock).acquire());
        waiters(&locks, &lock, 1).await;
        let marked = locks.break_lock(&lock).await;
        if is_ours {
            assert_eq!(marked.unwrap().len(), 1);
        } else {
            let (fault, text) = told(&marked.expect_err("nobody would read it"));
            assert!(fault == Some(Fault::Permanent) && text.contains("break it with force"), "{text}");
        }
        assert!(!waiting.is_finished());
        assert_eq!(locks.break_lock(&lock).force().await.unwrap().len(), 1);
        let next = tokio::time::timeout(SOON, waiting).await.expect("it is served").unwrap().unwrap();
        next.release().await.unwrap();
    }
}

/// Who may not write to it can still break its own locks; their holders learn it later.
#[tokio::test(flavor = "multi_thread")]
async fn an_announcement_that_is_refused_keeps_no_lock_from_being_broken() {
    const SESSION: Duration = Duration::from_secs(3);
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let raw = spot.raw().await;
    let locks = Locks::connect(&spot.with(SESSION)).await.unwrap();
    raw.create(
        &format!("{}/.breaks", spot.root),
        b"",
        &CreateMode::Persistent.with_acls(Acls::anyone_read()),
    )
    .await
    .unwrap();
    for force in [false, true] {
        let guard = locks.lock("n").acquire().await.unwrap();
        let order = locks.break_lock("n").reason("why not");
        assert_eq!(if force { order.force() } else { order }.await.unwrap().len(), 1);
        let lost = tokio::time::timeout(SESSION, guard.lost()).await.expect("by its next renewal");
        assert_eq!(lost == LostReason::Gone, force, "what is deleted can't tell why: {lost:?}");
        drop(guard);
        let next = tokio::time::timeout(SOON, locks.lock("n").acquire()).await.expect("it is free").unwrap();
        next.release().await.unwrap();
    }
}

/// What is sent for an acquisition, a renewal and a release, and that breaks add nothing to it.
#[tokio::test(flavor = "multi_thread")]
async fn cost_acquisitions_and_renewals_nothing() {
    const PAIRS: u64 = 200;
    const SESSION: Duration = Duration::from_secs(6);
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let locks = Locks::connect(&spot.with(SESSION)).await.unwrap();
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    // The driver pings when it has sent nothing for half a second.
    let pings = |began| u64::try_from(now().since(began).as_millis()).unwrap() / 500 + 2;
    let (began, before) = (now(), zookeeper::packets(&server).await);
    for _ in 0..PAIRS {
        locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    }
    let packets = zookeeper::packets(&server).await - before;
    println!("{packets} packets for {PAIRS} pairs");
    assert!((3 * PAIRS..=3 * PAIRS + pings(began)).contains(&packets), "create, list, delete: {packets}");

    let guards: Vec<_> = join_all((0..50).map(|number| locks.lock(format!("n{number}")).acquire())).await;
    let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    let (began, before) = (now(), zookeeper::packets(&server).await);
    let mut renewals = 0;
    while now().since(began) < SESSION {
        renewals += join_all(guards.iter().map(Guard::renewed)).await.len() as u64;
    }
    let packets = zookeeper::packets(&server).await - before;
    println!("{packets} packets for {renewals} renewals");
    // Some are of the next round by now.
    assert!(packets <= renewals + guards.len() as u64 + pings(began), "one each: {packets}");
}
