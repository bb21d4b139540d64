//! The end of the numbers that a lock's node counts its requests with: 32 bits, which stand still or turn negative there.
//!
//! No test can count that far. So the server is stopped, the number is changed in its newest snapshot, and it goes on.

use std::{fs, path::PathBuf, time::Duration};

use polylock::{Error, Locks};
use polylock_integration_tests::{
    clock::{PATIENCE, pause, until},
    servers::{Private, zookeeper},
};
use polylock_testkit::history::{self, Rules};
use tokio::task::block_in_place;
use zookeeper_client::Client;

use crate::{Spot, load::Load, waiters};

/// From here on a lock that is left empty counts anew, as the store's documentation says.
const RENEWED_FROM: i32 = 1 << 30;
/// Beyond this nobody waits.
const LAST: i32 = i32::MAX - (1 << 20) + 1;
/// From here on the servers' numbers go wrong.
const END: i32 = i32::MAX;

/// Nobody deletes the empty node of a lock but the store.
const NO_REAPER: &str = "-Dznode.container.checkIntervalMs=3600000";
/// Else a snapshot ends with a second sum, over all nodes.
const NO_DIGEST: &str = "-Dzookeeper.digest.enabled=false";

fn start() -> Private {
    zookeeper::start(&[NO_REAPER, NO_DIGEST]).unwrap()
}

/// The next request of the node at `path` has the number `count`.
fn counts_from(server: &Private, path: &str, count: i32) {
    block_in_place(|| {
        // It writes a snapshot when it starts.
        server.restart();
        server.kill();
        let file = newest_snapshot(server);
        let mut snapshot = fs::read(&file).unwrap();
        set_count(&mut snapshot, path, count);
        fs::write(file, snapshot).unwrap();
        server.restart();
    });
}

fn newest_snapshot(server: &Private) -> PathBuf {
    let files = fs::read_dir(server.directory().join("data/version-2")).unwrap();
    let snapshots = files.filter_map(|file| {
        let path = file.unwrap().path();
        let number = path.file_name()?.to_str()?.strip_prefix("snapshot.")?;
        Some((u64::from_str_radix(number, 16).unwrap(), path))
    });
    snapshots.max().expect("it has one").1
}

/// A node is its path and its data, each behind its length, the number of its rights in 8 bytes, and its state: four times 8
/// bytes, a version, and the number of changes of its children, from which their names come. At the end there are the sum
/// of all that and the path of the root.
fn set_count(snapshot: &mut [u8], path: &str, count: i32) {
    let length = |bytes: &[u8]| i32::try_from(bytes.len()).unwrap().to_be_bytes();
    let wanted = [&length(path.as_bytes()), path.as_bytes(), &length(b"")].concat();
    let found: Vec<usize> = (0..snapshot.len()).filter(|at| snapshot[*at..].starts_with(&wanted)).collect();
    let [at] = found[..] else { panic!("{path} is there {} times", found.len()) };
    let at = at + wanted.len() + 8 + 4 * 8 + 4;
    snapshot[at..at + 4].copy_from_slice(&count.to_be_bytes());
    let end = snapshot.len() - 8 - length(b"/").len() - b"/".len();
    assert!(snapshot.ends_with(&[&length(b"/")[..], b"/"].concat()), "it ends as expected");
    let sum = u64::from(adler32(&snapshot[..end]));
    snapshot[end..end + 8].copy_from_slice(&sum.to_be_bytes());
}

fn adler32(bytes: &[u8]) -> u32 {
    let (low, high) = bytes.iter().fold((1, 0), |(low, high), byte| {
        let low = (low + u32::from(*byte)) % 65_521;
        (low, (high + low) % 65_521)
    });
    high << 16 | low
}

/// Takes the lock `n` once, so that its node is there, and has it count from there on.
async fn at(server: &Private, spot: &Spot, count: i32) -> Client {
    let locks = Locks::connect(&spot.url).await.unwrap();
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    assert!(locks.close(PATIENCE).await);
    counts_from(server, &format!("{}/n", spot.root), count);
    spot.raw().await
}

/// The numbers of the requests that there are.
async fn numbers(raw: &Client, spot: &Spot) -> Vec<i32> {
    let requests = raw.list_children(&format!("{}/n", spot.root)).await.unwrap();
    let mut numbers: Vec<i32> =
        requests.iter().map(|request| request.rsplit_once('_').unwrap().1.parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

/// What the server does there, which is why nobody may have such a number: without this the other tests prove nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_gives_numbers_twice_at_the_end() {
    let server = start();
    let spot = Spot::of(&server);
    let raw = at(&server, &spot, END - 1).await;
    let acls = zookeeper_client::Acls::anyone_all();
    let options = zookeeper_client::CreateMode::EphemeralSequential.with_acls(acls);
    for request in 0..4 {
        raw.create(&format!("{}/n/{request}_EX_", spot.root), &[], &options).await.unwrap();
    }
    assert_eq!(numbers(&raw, &spot).await, [END - 1, END, END, END]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_has_counted_far_counts_anew_when_it_is_left_empty() {
    let server = start();
    let spot = Spot::of(&server);
    let raw = at(&server, &spot, RENEWED_FROM - 1).await;
    let (here, there) = (Locks::connect(&spot.url).await.unwrap(), Locks::connect(&spot.url).await.unwrap());
    let mut token = None;
    let mut holder = here.lock("n").acquire().await.unwrap();
    // Never empty across the border: it goes on.
    for round in 0..6 {
        assert_eq!(numbers(&raw, &spot).await, [RENEWED_FROM - 1 + round]);
        let waiting = tokio::spawn(if round % 2 == 0 { &there } else { &here }.lock("n").acquire());
        waiters(&here, "n", 1).await;
        assert!(Some(holder.fencing_token()) > token);
        token = Some(holder.fencing_token());
        holder.release().await.unwrap();
        holder = waiting.await.unwrap().unwrap();
    }
    assert_eq!(numbers(&raw, &spot).await, [RENEWED_FROM + 5]);
    assert!(Some(holder.fencing_token()) > token);
    token = Some(holder.fencing_token());
    holder.release().await.unwrap();
    for _ in 0..2 {
        // Only the first time its node is new.
        let holder = there.lock("n").acquire().await.unwrap();
        assert!(numbers(&raw, &spot).await[0] < 2);
        assert!(Some(holder.fencing_token()) > token);
        token = Some(holder.fencing_token());
        holder.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_last_number_nobody_is_granted_before_all_others_have_gone() {
    let server = start();
    let spot = Spot::of(&server);
    let raw = at(&server, &spot, LAST - 1).await;
    let (here, there) = (Locks::connect(&spot.url).await.unwrap(), Locks::connect(&spot.url).await.unwrap());
    let first = here.lock("n").acquire().await.unwrap();
    let second = tokio::spawn(there.lock("n").acquire());
    waiters(&here, "n", 1).await;
    assert_eq!(numbers(&raw, &spot).await, [LAST - 1, LAST]);

    let waits = here.lock("n").wait(Duration::from_millis(300)).acquire().await;
    assert!(matches!(&waits, Err(Error::NotAcquired { .. })), "{waits:?}");
    assert!(there.lock("n").try_acquire().await.unwrap().is_none());
    let third = tokio::spawn(there.lock("n").acquire());
    // It comes and goes meanwhile.
    pause(Duration::from_millis(500)).await;
    assert!(!second.is_finished() && !third.is_finished());

    let token = first.fencing_token();
    first.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    assert!(second.fencing_token() > token && !third.is_finished());
    pause(Duration::from_millis(500)).await;
    assert!(!third.is_finished(), "the second one holds it");
    let token = second.fencing_token();
    second.release().await.unwrap();
    let third = tokio::time::timeout(PATIENCE, third).await.expect("it is served at last").unwrap().unwrap();
    assert!(third.fencing_token() > token);
    let counted = numbers(&raw, &spot).await;
    assert!(counted.len() == 1 && counted[0] < RENEWED_FROM, "{counted:?}");
    third.release().await.unwrap();
    spot.is_clean().await;
}

/// Numbers at the very end, of a lock that is held: who comes then stands before the holder, by its number.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_is_not_disturbed_by_numbers_that_turn_negative() {
    let server = start();
    let spot = Spot::of(&server);
    let raw = at(&server, &spot, LAST).await;
    let (here, there) = (
        Locks::connect(&spot.with(Duration::from_secs(60))).await.unwrap(),
        Locks::connect(&spot.url).await.unwrap(),
    );
    let guard = here.lock("n").acquire().await.unwrap();
    counts_from(&server, &format!("{}/n", spot.root), END - 2);
    let tries: Vec<_> = (0..8)
        .map(|_| {
            let lock = there.lock("n").wait(Duration::from_secs(2));
            tokio::spawn(lock.acquire())
        })
        .collect();
    // While they come and go: it is seen to hold it, and nobody else is.
    let mut looks = 0;
    while !tries.iter().all(tokio::task::JoinHandle::is_finished) {
        let status = there.inspect("n").await.unwrap();
        let tokens: Vec<_> = status.holders.iter().map(|holder| holder.token).collect();
        assert_eq!(tokens, [Some(guard.fencing_token())]);
        looks += 1;
    }
    println!("looked {looks} times");
    for one in tries {
        let error = one.await.unwrap().expect_err("it is held");
        assert!(error.is_not_acquired() || error.is_temporary(), "{error:?}");
    }
    assert!(guard.is_held(), "{:?}", guard.ensure_held());
    until("who gave up is gone", async || numbers(&raw, &spot).await == [LAST]).await;
    let next = tokio::spawn(there.lock("n").acquire());
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let next = tokio::time::timeout(PATIENCE, next).await.expect("its turn comes").unwrap().unwrap();
    assert!(next.fencing_token() > token);
    next.release().await.unwrap();
    spot.is_clean().await;
}

/// Many contend while each of the borders is crossed.
#[tokio::test(flavor = "multi_thread")]
async fn who_contend_across_a_border_never_overlap() {
    let server = start();
    for count in [RENEWED_FROM - 20, LAST - 20, END - 20] {
        let spot = Spot::of(&server);
        let locks = Locks::connect(&spot.url).await.unwrap();
        locks.lock("lock").acquire().await.unwrap().release().await.unwrap();
        assert!(locks.close(PATIENCE).await);
        let node = format!("{}/lock", spot.root);
        counts_from(&server, &node, count);
        let load = Load { stores: 2, tasks: 2, names: 1, ..Load::default() };
        let outcome = load.run(&spot.url, async {}).await;
        println!("from {count}: {} sections", outcome.sections.len());
        assert_eq!((outcome.failures, outcome.losses), (0, 0));
        assert_eq!(history::check(&outcome.sections, Rules::default()), []);
        assert!(outcome.sections.len() > 40, "the border was crossed");
        let raw = spot.raw().await;
        let counted = raw.check_stat(&node).await.unwrap().map_or(0, |stat| stat.cversion);
        println!("{counted}");
        spot.is_clean().await;
    }
}
