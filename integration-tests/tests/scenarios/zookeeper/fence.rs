//! Fenced writes to users' own nodes: refused once the lock is gone, however late they arrive.

use std::time::Duration;

use polylock::{Guard, Locks, OwnerId};
use polylock_integration_tests::{
    clock::{self, TIMEOUT},
    proxy::{BOTH, Direction, Flow, Proxy},
    servers::{Server, zookeeper},
    stores::wait_for_waiters,
};
use polylock_zookeeper::fence::{Error, Fence};
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error as Failure, MultiWriteResult};

use super::Namespace;

const SESSION: Duration = Duration::from_secs(20);
const KEPT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());
const LOCK: &str = "orders/42";
/// The header of a multi request; see `lost_replies`.
const MULTI: [u8; 4] = [0, 0, 0, 14];

/// A store, and an empty node of the user, at version 0.
struct Fixture {
    namespace: Namespace,
    locks: Locks,
    raw: Client,
    data: String,
}

impl Fixture {
    async fn new(server: &Server) -> Self {
        let namespace = Namespace::of(server);
        let locks = Locks::connect(&namespace.url_with_session(SESSION)).await.unwrap();
        let (raw, data) = (namespace.client().await, format!("{}-data", namespace.root));
        raw.create(&data, b"", &KEPT).await.unwrap();
        Self { namespace, locks, raw, data }
    }

    async fn hold(&self) -> Guard {
        self.locks.lock(LOCK).acquire().await.unwrap()
    }

    async fn fence(&self, guard: &Guard) -> Fence {
        Fence::of(&self.raw, &self.namespace.root, guard).await.unwrap()
    }

    /// Writes `text`, and returns the id of the transaction.
    async fn write(&self, fence: &Fence, text: &str) -> Result<i64, Error> {
        let results = fence.write(|write| write.add_set_data(&self.data, text.as_bytes(), None)).await?;
        let [MultiWriteResult::SetData { stat }] = results.as_slice() else { panic!("{results:?}") };
        Ok(stat.mzxid)
    }

    /// Checks the data and the number of writes.
    async fn check_data(&self, text: &str, writes: i32) {
        let (data, stat) = self.raw.get_data(&self.data).await.unwrap();
        assert_eq!((str::from_utf8(&data).unwrap(), stat.version), (text, writes));
    }
}

/// Checks that a write was refused because the lock is gone.
#[track_caller]
fn check_no_longer_held<T: std::fmt::Debug>(written: Result<T, Error>) {
    let error = written.unwrap_err();
    assert!(error.is_no_longer_held(), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_writes_all_or_nothing() {
    let fixture = Fixture::new(zookeeper().unwrap()).await;
    let guard = fixture.hold().await;
    let fence = fixture.fence(&guard).await;
    let (data, beside) = (&*fixture.data, format!("{}/beside", fixture.data));
    let written = fence.write(|write| {
        write.add_set_data(data, b"1", Some(0))?;
        write.add_create(&beside, b"", &KEPT)
    });
    assert!(matches!(
        written.await.unwrap().as_slice(),
        [MultiWriteResult::SetData { .. }, MultiWriteResult::Create { .. }]
    ));
    fixture.check_data("1", 1).await;

    let twice = fence.write(|write| {
        write.add_set_data(data, b"2", None)?;
        write.add_create(&beside, b"", &KEPT)
    });
    let error = twice.await.unwrap_err();
    assert!(matches!(error, Error::Refused { index: Some(1), source: Failure::NodeExists }), "{error:?}");
    let outdated = fence.write(|write| {
        write.add_set_data(data, b"3", Some(0))?;
        write.add_delete(&beside, None)
    });
    let error = outdated.await.unwrap_err();
    assert!(matches!(error, Error::Refused { index: Some(0), source: Failure::BadVersion }), "{error:?}");
    let unsound = fence.write(|write| {
        write.add_set_data(data, b"4", None)?;
        write.add_delete("no path", None)
    });
    let error = unsound.await.unwrap_err();
    assert!(matches!(error, Error::Refused { index: None, source: Failure::BadArguments(_) }), "{error:?}");
    fixture.check_data("1", 1).await;
    assert!(fixture.raw.check_stat(&beside).await.unwrap().is_some());

    assert_eq!(fence.write(|_| Ok(())).await.unwrap(), []);
    fixture.write(&fence, "5").await.unwrap();
    fixture.check_data("5", 2).await;
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_lock_writes_nothing() {
    let fixture = Fixture::new(zookeeper().unwrap()).await;
    let me = OwnerId::unique();
    let outer = fixture.locks.lock(LOCK).reentrant(&me).acquire().await.unwrap();
    let inner = fixture.locks.lock(LOCK).reentrant(&me).acquire().await.unwrap();
    let fence = fixture.fence(&inner).await;
    fixture.write(&fence, "outer").await.unwrap();
    inner.release().await.unwrap();
    // The release of the last guard releases the lock.
    fixture.write(&fence, "inner").await.unwrap();
    outer.release().await.unwrap();
    check_no_longer_held(fixture.write(&fence, "late").await);
    check_no_longer_held(fence.write(|_| Ok(())).await);
    fixture.check_data("inner", 2).await;

    let next = fixture.hold().await;
    check_no_longer_held(fixture.write(&fence, "late").await);
    let others = fixture.fence(&next).await;
    fixture.write(&others, "next").await.unwrap();
    check_no_longer_held(fixture.write(&fence, "late").await);
    fixture.check_data("next", 3).await;
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_reader_has_a_separate_fence() {
    let fixture = Fixture::new(zookeeper().unwrap()).await;
    let read = async || fixture.locks.lock(LOCK).shared().acquire().await.unwrap();
    let (one, two) = (read().await, read().await);
    let fences = [fixture.fence(&one).await, fixture.fence(&two).await];
    assert_ne!(fences[0].path(), fences[1].path());
    one.release().await.unwrap();
    check_no_longer_held(fixture.write(&fences[0], "one").await);
    fixture.write(&fences[1], "two").await.unwrap();
    two.release().await.unwrap();
    check_no_longer_held(fixture.write(&fences[1], "two").await);
    fixture.check_data("two", 1).await;
}

/// Its session ends because its packets are lost. Its writes take another connection, which works.
#[tokio::test(flavor = "multi_thread")]
async fn a_partitioned_holder_writes_nothing_after_the_next_one() {
    let server = zookeeper::start(&[]).unwrap();
    let (fixture, proxy) = (Fixture::new(&server).await, Proxy::to(server.port()));
    let short = fixture.namespace.url_with_session(Duration::from_secs(4));
    let cut = Locks::connect(&proxy.url(&short)).await.unwrap();
    let guard = cut.lock(LOCK).acquire().await.unwrap();
    let fence = fixture.fence(&guard).await;
    fixture.write(&fence, "first").await.unwrap();
    let next = tokio::spawn(fixture.locks.lock(LOCK).acquire());
    wait_for_waiters(&fixture.locks, LOCK, 1).await;
    BOTH.into_iter().for_each(|way| proxy.set(way, Flow::Drop));
    let lost = guard.lost().await;
    // The deadline is before the end of the session, so no other client holds the lock yet.
    println!("{lost:?}; then: {:?}", fixture.write(&fence, "first").await);
    let writes = fixture.raw.check_stat(&fixture.data).await.unwrap().unwrap().version;
    let next =
        tokio::time::timeout(TIMEOUT, next).await.expect("the waiter is granted the lock").unwrap().unwrap();
    check_no_longer_held(fixture.write(&fence, "late").await);
    check_no_longer_held(Fence::of(&fixture.raw, &fixture.namespace.root, &guard).await);
    fixture.check_data("first", writes).await;
    fixture.write(&fixture.fence(&next).await, "next").await.unwrap();
    check_no_longer_held(fixture.write(&fence, "late").await);
    fixture.check_data("next", writes + 1).await;
    next.release().await.unwrap();
}

/// The same write is in flight with and without the fence while another client acquires the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_in_flight_is_refused_if_the_lock_has_a_new_holder() {
    let server = zookeeper::start(&[]).unwrap();
    let (fixture, proxy) = (Fixture::new(&server).await, Proxy::to(server.port()));
    let slow = Client::connect(&proxy.address().to_string()).await.unwrap();
    let plain = format!("{}-plain", fixture.data);
    slow.create(&plain, b"", &KEPT).await.unwrap();
    let guard = fixture.hold().await;
    let fence = Fence::of(&slow, &fixture.namespace.root, &guard).await.unwrap();

    let before = proxy.counts().requests;
    proxy.set(Direction::ToServer, Flow::Hold);
    let data = fixture.data.clone();
    let fenced =
        tokio::spawn(async move { fence.write(|write| write.add_set_data(&data, b"late", None)).await });
    clock::until("the fenced write is sent", async || proxy.counts().requests > before).await;
    let unfenced = slow.set_data(&plain, b"late", None);
    clock::until("the other write is sent", async || proxy.counts().requests > before + 1).await;
    guard.release().await.unwrap();
    let next = fixture.hold().await;
    fixture.write(&fixture.fence(&next).await, "next").await.unwrap();
    fixture.raw.set_data(&plain, b"next", None).await.unwrap();
    assert!(!fenced.is_finished());
    proxy.set(Direction::ToServer, Flow::Pass);

    check_no_longer_held(fenced.await.unwrap());
    fixture.check_data("next", 1).await;
    unfenced.await.unwrap();
    assert_eq!(
        fixture.raw.get_data(&plain).await.unwrap().0,
        b"late",
        "without the fence, the late write is applied"
    );
    next.release().await.unwrap();
}

/// Holders keep writing through one member while their lock is broken; the next holder reads all of their writes through
/// another member.
#[tokio::test(flavor = "multi_thread")]
async fn all_writes_of_a_holder_precede_those_of_the_next() {
    let server = zookeeper::ensemble(3, &[]).unwrap();
    let fixture = Fixture::new(&server).await;
    let mut clients = Vec::new();
    for member in server.members() {
        clients.push(Client::connect(member.url().split_once("://").unwrap().1).await.unwrap());
    }
    let created = fixture.raw.check_stat(&fixture.data).await.unwrap().unwrap();
    let (mut last, mut writes) = (created.czxid, created.version);
    for round in 0..30 {
        let guard = fixture.hold().await;
        let client = clients[round % 3].clone();
        let fence = Fence::of(&client, &fixture.namespace.root, &guard).await.unwrap();
        let path = fixture.data.clone();
        let former_holder = tokio::spawn(async move {
            let (mut first, mut last, mut count) = (None, 0, 0);
            let refused = loop {
                match fence.write(|write| write.add_set_data(&path, b"x", None)).await {
                    Ok(results) => {
                        let [MultiWriteResult::SetData { stat }] = results.as_slice() else { panic!() };
                        (first, last, count) = (first.or(Some(stat.mzxid)), stat.mzxid, count + 1);
                    }
                    Err(error) => break error,
                }
            };
            assert!(refused.is_no_longer_held(), "{refused:?}");
            for _ in 0..5 {
                check_no_longer_held(fence.write(|write| write.add_set_data(&path, b"late", None)).await);
            }
            (first, last, count)
        });
        clock::until("it writes", async || {
            fixture.raw.check_stat(&fixture.data).await.unwrap().unwrap().version > writes
        })
        .await;
        // A member may not reply in time, because the former holder writes without a pause.
        clock::until("a break", async || fixture.locks.break_lock(LOCK).force().await.is_ok()).await;
        let next = fixture.hold().await;
        // The client of the next holder uses another member, while the former holder keeps writing.
        let client = clients[(round + 1) % 3].clone();
        let fence = Fence::of(&client, &fixture.namespace.root, &next).await.unwrap();
        let seen = client.get_data(&fixture.data).await.unwrap().1;
        let own = fence.write(|write| write.add_set_data(&fixture.data, b"next", Some(seen.version))).await;
        let [MultiWriteResult::SetData { stat: own }] = &*own.unwrap() else { panic!() };
        let (first, former, count) = tokio::time::timeout(TIMEOUT, former_holder).await.unwrap().unwrap();
        assert!(first.unwrap() > last && former < own.mzxid, "{first:?} to {former} {own:?}");
        assert_eq!((seen.mzxid, seen.version), (former, writes + count), "not all writes were read");
        (last, writes) = (own.mzxid, own.version);
        next.release().await.unwrap();
        drop(guard);
    }
}

/// The client may have a chroot. Arguments that do not lead to the guard's own node are errors.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_is_created_only_for_the_exact_grant() {
    let server = zookeeper::start(&[]).unwrap();
    let fixture = Fixture::new(&server).await;
    let root = &*fixture.namespace.root;
    let raw = |chroot: &str| fixture.raw.clone().chroot(chroot.to_owned()).unwrap();
    let guard = fixture.hold().await;
    for (chroot, root) in [("/", format!("{root}/")), (root, root.to_owned())] {
        let client = raw(chroot);
        let fence = Fence::of(&client, &root, &guard).await.unwrap();
        assert!(client.check_stat(fence.path()).await.unwrap().is_some());
        client.create("/beside", b"", &KEPT).await.unwrap();
        fence.write(|write| write.add_set_data("/beside", b"x", None)).await.unwrap();
    }
    let of =
        async |client: &Client, root: &str, guard: &Guard| Fence::of(client, root, guard).await.unwrap_err();
    let error = of(&raw(&fixture.data), root, &guard).await;
    assert!(matches!(error, Error::OutsideChroot { .. }), "{error:?}");
    let error = of(&fixture.raw, "/a//b", &guard).await;
    assert!(matches!(error, Error::InvalidRoot(_)), "{error:?}");
    let error = of(&fixture.raw, "/elsewhere", &guard).await;
    assert!(matches!(error, Error::NotFound { .. }), "{error:?}");

    // Another store that reaches the same token, with another owner.
    let memory = Locks::connect("memory:").await.unwrap();
    let me = OwnerId::unique();
    let same = loop {
        let other = memory.lock(LOCK).reentrant(&me).acquire().await.unwrap();
        if other.fencing_token() == guard.fencing_token() {
            break other;
        }
        assert!(other.fencing_token() < guard.fencing_token());
        other.release().await.unwrap();
    };
    let error = of(&fixture.raw, root, &same).await;
    assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
    same.release().await.unwrap();

    let another = fixture.locks.lock("another").acquire().await.unwrap();
    let fences = [fixture.fence(&guard).await, fixture.fence(&another).await];
    assert_ne!(fences[0].path(), fences[1].path());
    fixture.locks.break_lock(LOCK).await.unwrap();
    // The hold excludes others until its holder has stopped, and accepts its last writes.
    fixture.write(&fences[0], "marked").await.unwrap();
    fixture.locks.break_lock(LOCK).force().await.unwrap();
    check_no_longer_held(fixture.write(&fences[0], "broken").await);
    fixture.write(&fences[1], "another").await.unwrap();
    // The guard may not have noticed the loss yet.
    let error = of(&fixture.raw, root, &guard).await;
    assert!(matches!(error, Error::NotFound { .. } | Error::NoLongerHeld { .. }), "{error:?}");
    fixture.check_data("another", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_the_user_of_the_store_is_denied() {
    let fixture = Fixture::new(zookeeper().unwrap()).await;
    let url = fixture.namespace.url_with_session(SESSION).replace("://", "://me:s3cret@");
    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.lock(LOCK).acquire().await.unwrap();
    let error = Fence::of(&fixture.raw, &fixture.namespace.root, &guard).await.unwrap_err();
    assert!(matches!(error, Error::Denied { source: Failure::NoAuth, .. }), "{error:?}");
    let known = fixture.namespace.client().await;
    known.auth("digest", b"me:s3cret").await.unwrap();
    let fence = Fence::of(&known, &fixture.namespace.root, &guard).await.unwrap();
    fixture.write(&fence, "own").await.unwrap();
    guard.release().await.unwrap();
    check_no_longer_held(fixture.write(&fence, "late").await);
    fixture.check_data("own", 1).await;
}

/// A write with a lost reply was applied, and with its version it is not applied twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_is_not_reported_as_a_refusal() {
    let server = zookeeper::start(&[]).unwrap();
    let (fixture, proxy) = (Fixture::new(&server).await, Proxy::to(server.port()));
    let cut = Client::connect(&proxy.address().to_string()).await.unwrap();
    let guard = fixture.hold().await;
    let fence = Fence::of(&cut, &fixture.namespace.root, &guard).await.unwrap();
    let write = async || fence.write(|write| write.add_set_data(&fixture.data, b"once", Some(0))).await;
    proxy.reset_before_reply_to(MULTI);
    let error = write().await.unwrap_err();
    assert!(matches!(error, Error::Unanswered { .. }), "{error:?}");
    assert_eq!(proxy.counts().resets_before_reply, 1);
    let error = write().await.unwrap_err();
    assert!(matches!(error, Error::Refused { index: Some(0), source: Failure::BadVersion }), "{error:?}");
    fixture.check_data("once", 1).await;
    guard.release().await.unwrap();
    check_no_longer_held(fixture.write(&fence, "late").await);
}
