//! The end of a lock node's 32-bit sequences, where they stop growing or turn negative.
//!
//! No test can create that many nodes. So the server is stopped, the sequence is changed in its newest snapshot, and the
//! server is started again.

use std::{fs, path::PathBuf, time::Duration};

use polylock::{Error, Locks};
use polylock_integration_tests::{
    clock::{TIMEOUT, pause, until},
    load::Load,
    servers::{PrivateServer, zookeeper},
    stores::wait_for_waiters,
};
use polylock_testkit::history::{self, Rules};
use tokio::task::block_in_place;
use zookeeper_client::Client;

use super::Namespace;

/// From this sequence on an empty lock node is replaced, as the store's documentation says.
const RESTART_FROM: i32 = 1 << 30;
/// No request waits with a greater sequence.
const LAST_SEQUENCE: i32 = i32::MAX - (1 << 20) + 1;
/// The last sequence that the servers assign correctly.
const END: i32 = i32::MAX;

/// Only the store deletes empty lock nodes.
const NO_REAPER: &str = "-Dznode.container.checkIntervalMs=3600000";
/// Without it, a snapshot would end with a second checksum, over all nodes.
const NO_DIGEST: &str = "-Dzookeeper.digest.enabled=false";

fn start() -> PrivateServer {
    zookeeper::start(&[NO_REAPER, NO_DIGEST]).unwrap()
}

/// Sets the sequence of the next request in the node at `path`.
fn set_next_sequence(server: &PrivateServer, path: &str, count: i32) {
    block_in_place(|| {
        // The server writes a snapshot when it starts.
        server.restart();
        server.kill();
        let file = newest_snapshot(server);
        let mut snapshot = fs::read(&file).unwrap();
        set_count(&mut snapshot, path, count);
        fs::write(file, snapshot).unwrap();
        server.restart();
    });
}

fn newest_snapshot(server: &PrivateServer) -> PathBuf {
    let files = fs::read_dir(server.directory().join("data/version-2")).unwrap();
    let snapshots = files.filter_map(|file| {
        let path = file.unwrap().path();
        let number = path.file_name()?.to_str()?.strip_prefix("snapshot.")?;
        Some((u64::from_str_radix(number, 16).unwrap(), path))
    });
    snapshots.max().expect("it has one").1
}

/// A node in a snapshot is its path and its data, each after its length, the number of its ACL in 8 bytes, and its state: four
/// times 8 bytes, a version, and the number of changes of its children, which is the next sequence. At the end of the snapshot
/// there are the checksum and the path of the root.
fn set_count(snapshot: &mut [u8], path: &str, count: i32) {
    let length = |bytes: &[u8]| i32::try_from(bytes.len()).unwrap().to_be_bytes();
    let wanted = [&length(path.as_bytes()), path.as_bytes(), &length(b"")].concat();
    let found: Vec<usize> = (0..snapshot.len()).filter(|at| snapshot[*at..].starts_with(&wanted)).collect();
    let [at] = found[..] else { panic!("{path} is found {} times", found.len()) };
    let at = at + wanted.len() + 8 + 4 * 8 + 4;
    snapshot[at..at + 4].copy_from_slice(&count.to_be_bytes());
    let end = snapshot.len() - 8 - length(b"/").len() - b"/".len();
    assert!(snapshot.ends_with(&[&length(b"/")[..], b"/"].concat()), "an unknown snapshot format");
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

/// Creates the node of the lock `n`, and sets its next sequence.
async fn lock_node_at(server: &PrivateServer, namespace: &Namespace, count: i32) -> Client {
    let locks = Locks::connect(&namespace.url).await.unwrap();
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    assert!(locks.close(TIMEOUT).await);
    set_next_sequence(server, &format!("{}/n", namespace.root), count);
    namespace.client().await
}

/// Returns the sequences of the current requests.
async fn sequences(raw: &Client, namespace: &Namespace) -> Vec<i32> {
    let requests = raw.list_children(&format!("{}/n", namespace.root)).await.unwrap();
    let mut sequences: Vec<i32> =
        requests.iter().map(|request| request.rsplit_once('_').unwrap().1.parse().unwrap()).collect();
    sequences.sort_unstable();
    sequences
}

/// The behaviour of the server that the store must avoid: the other tests depend on it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_repeats_sequences_at_the_end() {
    let server = start();
    let namespace = Namespace::of(&server);
    let raw = lock_node_at(&server, &namespace, END - 1).await;
    let acls = zookeeper_client::Acls::anyone_all();
    let options = zookeeper_client::CreateMode::EphemeralSequential.with_acls(acls);
    for request in 0..4 {
        raw.create(&format!("{}/n/{request}_EX_", namespace.root), &[], &options).await.unwrap();
    }
    assert_eq!(sequences(&raw, &namespace).await, [END - 1, END, END, END]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sequences_restart_when_a_lock_with_high_ones_is_empty() {
    let server = start();
    let namespace = Namespace::of(&server);
    let raw = lock_node_at(&server, &namespace, RESTART_FROM - 1).await;
    let (here, there) =
        (Locks::connect(&namespace.url).await.unwrap(), Locks::connect(&namespace.url).await.unwrap());
    let mut token = None;
    let mut holder = here.lock("n").acquire().await.unwrap();
    // The lock is never empty at the limit, so the sequences continue.
    for round in 0..6 {
        assert_eq!(sequences(&raw, &namespace).await, [RESTART_FROM - 1 + round]);
        let waiting = tokio::spawn(if round % 2 == 0 { &there } else { &here }.lock("n").acquire());
        wait_for_waiters(&here, "n", 1).await;
        assert!(Some(holder.fencing_token()) > token);
        token = Some(holder.fencing_token());
        holder.release().await.unwrap();
        holder = waiting.await.unwrap().unwrap();
    }
    assert_eq!(sequences(&raw, &namespace).await, [RESTART_FROM + 5]);
    assert!(Some(holder.fencing_token()) > token);
    token = Some(holder.fencing_token());
    holder.release().await.unwrap();
    for _ in 0..2 {
        // The lock node was created again before the first of these two holds.
        let holder = there.lock("n").acquire().await.unwrap();
        assert!(sequences(&raw, &namespace).await[0] < 2);
        assert!(Some(holder.fencing_token()) > token);
        token = Some(holder.fencing_token());
        holder.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_the_last_sequence_wait_for_an_empty_lock_node() {
    let server = start();
    let namespace = Namespace::of(&server);
    let raw = lock_node_at(&server, &namespace, LAST_SEQUENCE - 1).await;
    let (here, there) =
        (Locks::connect(&namespace.url).await.unwrap(), Locks::connect(&namespace.url).await.unwrap());
    let first = here.lock("n").acquire().await.unwrap();
    let second = tokio::spawn(there.lock("n").acquire());
    wait_for_waiters(&here, "n", 1).await;
    assert_eq!(sequences(&raw, &namespace).await, [LAST_SEQUENCE - 1, LAST_SEQUENCE]);

    let waits = here.lock("n").wait(Duration::from_secs(3)).acquire().await;
    assert!(matches!(&waits, Err(Error::NotAcquired { .. })), "{waits:?}");
    assert!(there.lock("n").try_acquire().await.unwrap().is_none());
    let third = tokio::spawn(there.lock("n").acquire());
    // Its node is created and deleted repeatedly.
    pause(Duration::from_millis(500)).await;
    assert!(!second.is_finished() && !third.is_finished());

    let token = first.fencing_token();
    first.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    assert!(second.fencing_token() > token && !third.is_finished());
    pause(Duration::from_millis(500)).await;
    assert!(!third.is_finished(), "the second request holds the lock");
    let token = second.fencing_token();
    second.release().await.unwrap();
    let third =
        tokio::time::timeout(TIMEOUT, third).await.expect("the waiter is granted the lock").unwrap().unwrap();
    assert!(third.fencing_token() > token);
    let counted = sequences(&raw, &namespace).await;
    assert!(counted.len() == 1 && counted[0] < RESTART_FROM, "{counted:?}");
    third.release().await.unwrap();
    namespace.wait_until_empty().await;
}

/// A request with a negative sequence would precede the holder of the lock.
#[tokio::test(flavor = "multi_thread")]
async fn negative_sequences_do_not_affect_a_holder() {
    let server = start();
    let namespace = Namespace::of(&server);
    lock_node_at(&server, &namespace, LAST_SEQUENCE).await;
    let (here, there) = (
        Locks::connect(&namespace.url_with_session(Duration::from_secs(60))).await.unwrap(),
        Locks::connect(&namespace.url).await.unwrap(),
    );
    let guard = here.lock("n").acquire().await.unwrap();
    set_next_sequence(&server, &format!("{}/n", namespace.root), END - 2);
    // The session of an earlier client may have ended during the restarts.
    let raw = namespace.client().await;
    let tries: Vec<_> = (0..8)
        .map(|_| {
            let lock = there.lock("n").wait(Duration::from_secs(2));
            tokio::spawn(lock.acquire())
        })
        .collect();
    // Meanwhile the holder is the only one in every status.
    let mut looks = 0;
    while !tries.iter().all(tokio::task::JoinHandle::is_finished) {
        let status = there.inspect("n").await.unwrap();
        let tokens: Vec<_> = status.holders.iter().map(|holder| holder.token).collect();
        assert_eq!(tokens, [Some(guard.fencing_token())]);
        looks += 1;
    }
    println!("{looks} inspections");
    for one in tries {
        let error = one.await.unwrap().expect_err("the lock is held");
        assert!(error.is_not_acquired() || error.is_temporary(), "{error:?}");
    }
    assert!(guard.is_held(), "{:?}", guard.ensure_held());
    until("the nodes of the tries are deleted", async || {
        sequences(&raw, &namespace).await == [LAST_SEQUENCE]
    })
    .await;
    let next = tokio::spawn(there.lock("n").acquire());
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let next =
        tokio::time::timeout(TIMEOUT, next).await.expect("the waiter is granted the lock").unwrap().unwrap();
    assert!(next.fencing_token() > token);
    next.release().await.unwrap();
    namespace.wait_until_empty().await;
}

/// Contention while the sequences pass each of the limits.
#[tokio::test(flavor = "multi_thread")]
async fn holds_never_overlap_when_sequences_pass_a_limit() {
    let server = start();
    for count in [RESTART_FROM - 20, LAST_SEQUENCE - 20, END - 20] {
        let namespace = Namespace::of(&server);
        let locks = Locks::connect(&namespace.url).await.unwrap();
        locks.lock("lock").acquire().await.unwrap().release().await.unwrap();
        assert!(locks.close(TIMEOUT).await);
        let node = format!("{}/lock", namespace.root);
        set_next_sequence(&server, &node, count);
        let load = Load { stores: 2, tasks: 2, names: 1, min_holds: 40, ..Load::default() };
        let outcome = load.run(&namespace.url, async {}).await;
        println!("from {count}: {} sections", outcome.sections.len());
        assert_eq!((outcome.failures, outcome.losses), (0, 0));
        assert_eq!(history::check(&outcome.sections, Rules::default()), []);
        assert!(outcome.sections.len() > 40, "the limit was not reached");
        let raw = namespace.client().await;
        let counted = raw.check_stat(&node).await.unwrap().map_or(0, |stat| stat.cversion);
        println!("{counted}");
        namespace.wait_until_empty().await;
    }
}
