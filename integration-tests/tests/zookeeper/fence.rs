//! Writes to users' own nodes: never by a holder whose lock is gone, however late they come.

use std::time::Duration;

use polylock::{Guard, Locks, OwnerId};
use polylock_integration_tests::{
    clock::{self, PATIENCE},
    proxy::{BOTH, Flow, Proxy, Way},
    servers::{Server, zookeeper},
};
use polylock_zookeeper::fence::{Error, Fence};
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error as Failure, MultiWriteResult};

use crate::{Spot, waiters};

const SESSION: Duration = Duration::from_secs(2);
const KEPT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());
const LOCK: &str = "orders/42";
/// A multi, as `lost_answers` has the others.
const MULTI: [u8; 4] = [0, 0, 0, 14];

/// A store, and a node of the user's that is empty, at version 0.
struct Place {
    spot: Spot,
    locks: Locks,
    raw: Client,
    data: String,
}

impl Place {
    async fn at(server: &Server) -> Self {
        let spot = Spot::of(server);
        let locks = Locks::connect(&spot.with(SESSION)).await.unwrap();
        let (raw, data) = (spot.raw().await, format!("{}-data", spot.root));
        raw.create(&data, b"", &KEPT).await.unwrap();
        Self { spot, locks, raw, data }
    }

    async fn hold(&self) -> Guard {
        self.locks.lock(LOCK).acquire().await.unwrap()
    }

    async fn fence(&self, guard: &Guard) -> Fence {
        Fence::of(&self.raw, &self.spot.root, guard).await.unwrap()
    }

    /// The transaction in which it was written.
    async fn write(&self, fence: &Fence, text: &str) -> Result<i64, Error> {
        let results = fence.write(|write| write.add_set_data(&self.data, text.as_bytes(), None)).await?;
        let [MultiWriteResult::SetData { stat }] = results.as_slice() else { panic!("{results:?}") };
        Ok(stat.mzxid)
    }

    /// It holds what the last of so many writes has written.
    async fn holds(&self, text: &str, writes: i32) {
        let (data, stat) = self.raw.get_data(&self.data).await.unwrap();
        assert_eq!((str::from_utf8(&data).unwrap(), stat.version), (text, writes));
    }
}

/// Refused because the lock is gone, and for no other reason.
#[track_caller]
fn too_late<T: std::fmt::Debug>(written: Result<T, Error>) {
    let error = written.unwrap_err();
    assert!(error.is_no_longer_held(), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_writes_all_or_nothing() {
    let place = Place::at(zookeeper().unwrap()).await;
    let guard = place.hold().await;
    let fence = place.fence(&guard).await;
    let (data, beside) = (&*place.data, format!("{}/beside", place.data));
    let written = fence.write(|write| {
        write.add_set_data(data, b"1", Some(0))?;
        write.add_create(&beside, b"", &KEPT)
    });
    assert!(matches!(
        written.await.unwrap().as_slice(),
        [MultiWriteResult::SetData { .. }, MultiWriteResult::Create { .. }]
    ));
    place.holds("1", 1).await;

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
    place.holds("1", 1).await;
    assert!(place.raw.check_stat(&beside).await.unwrap().is_some());

    assert_eq!(fence.write(|_| Ok(())).await.unwrap(), []);
    place.write(&fence, "5").await.unwrap();
    place.holds("5", 2).await;
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_lock_writes_nothing() {
    let place = Place::at(zookeeper().unwrap()).await;
    let me = OwnerId::unique();
    let outer = place.locks.lock(LOCK).reentrant(&me).acquire().await.unwrap();
    let inner = place.locks.lock(LOCK).reentrant(&me).acquire().await.unwrap();
    let fence = place.fence(&inner).await;
    place.write(&fence, "outer").await.unwrap();
    inner.release().await.unwrap();
    // The last of them releases it.
    place.write(&fence, "inner").await.unwrap();
    outer.release().await.unwrap();
    too_late(place.write(&fence, "late").await);
    too_late(fence.write(|_| Ok(())).await);
    place.holds("inner", 2).await;

    let next = place.hold().await;
    too_late(place.write(&fence, "late").await);
    let others = place.fence(&next).await;
    place.write(&others, "next").await.unwrap();
    too_late(place.write(&fence, "late").await);
    place.holds("next", 3).await;
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_reader_has_a_fence_of_its_own() {
    let place = Place::at(zookeeper().unwrap()).await;
    let read = async || place.locks.lock(LOCK).shared().acquire().await.unwrap();
    let (one, two) = (read().await, read().await);
    let fences = [place.fence(&one).await, place.fence(&two).await];
    assert_ne!(fences[0].path(), fences[1].path());
    one.release().await.unwrap();
    too_late(place.write(&fences[0], "one").await);
    place.write(&fences[1], "two").await.unwrap();
    two.release().await.unwrap();
    too_late(place.write(&fences[1], "two").await);
    place.holds("two", 1).await;
}

/// Its session ends because the servers do not hear of it. Its data have a way of their own, and get through.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_was_cut_off_writes_nothing_after_the_next() {
    let server = zookeeper::start(&[]).unwrap();
    let (place, proxy) = (Place::at(&server).await, Proxy::to(server.port()));
    let cut = Locks::connect(&proxy.url(&place.spot.with(SESSION))).await.unwrap();
    let guard = cut.lock(LOCK).acquire().await.unwrap();
    let fence = place.fence(&guard).await;
    place.write(&fence, "first").await.unwrap();
    let next = tokio::spawn(place.locks.lock(LOCK).acquire());
    waiters(&place.locks, LOCK, 1).await;
    BOTH.into_iter().for_each(|way| proxy.set(way, Flow::Swallow));
    let lost = guard.lost().await;
    // By its own clock, before the servers': nobody else has the lock yet.
    println!("{lost:?}; then: {:?}", place.write(&fence, "first").await);
    let writes = place.raw.check_stat(&place.data).await.unwrap().unwrap().version;
    let next = tokio::time::timeout(PATIENCE, next).await.expect("it is served").unwrap().unwrap();
    too_late(place.write(&fence, "late").await);
    too_late(Fence::of(&place.raw, &place.spot.root, &guard).await);
    place.holds("first", writes).await;
    place.write(&place.fence(&next).await, "next").await.unwrap();
    too_late(place.write(&fence, "late").await);
    place.holds("next", writes + 1).await;
    next.release().await.unwrap();
}

/// Twice the same write on its way, with the fence and without, while the lock passes to another.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_on_its_way_is_refused_if_the_lock_has_passed() {
    let server = zookeeper::start(&[]).unwrap();
    let (place, proxy) = (Place::at(&server).await, Proxy::to(server.port()));
    let slow = Client::connect(&proxy.address().to_string()).await.unwrap();
    let plain = format!("{}-plain", place.data);
    slow.create(&plain, b"", &KEPT).await.unwrap();
    let guard = place.hold().await;
    let fence = Fence::of(&slow, &place.spot.root, &guard).await.unwrap();

    let before = proxy.counts().requests;
    proxy.set(Way::ToServer, Flow::Hold);
    let data = place.data.clone();
    let fenced =
        tokio::spawn(async move { fence.write(|write| write.add_set_data(&data, b"late", None)).await });
    clock::until("it is on its way", async || proxy.counts().requests > before).await;
    let unfenced = slow.set_data(&plain, b"late", None);
    clock::until("so is the other", async || proxy.counts().requests > before + 1).await;
    guard.release().await.unwrap();
    let next = place.hold().await;
    place.write(&place.fence(&next).await, "next").await.unwrap();
    place.raw.set_data(&plain, b"next", None).await.unwrap();
    assert!(!fenced.is_finished());
    proxy.set(Way::ToServer, Flow::Pass);

    too_late(fenced.await.unwrap());
    place.holds("next", 1).await;
    unfenced.await.unwrap();
    assert_eq!(place.raw.get_data(&plain).await.unwrap().0, b"late", "this is what the fence is for");
    next.release().await.unwrap();
}

/// Holders that go on writing as long as they can, at one member, while their lock is broken; the next one is at another, and
/// reads all of it.
#[tokio::test(flavor = "multi_thread")]
async fn all_writes_of_a_holder_are_before_all_of_the_next() {
    let server = zookeeper::ensemble(3, &[]).unwrap();
    let place = Place::at(&server).await;
    let mut clients = Vec::new();
    for member in server.members() {
        clients.push(Client::connect(member.url().split_once("://").unwrap().1).await.unwrap());
    }
    let made = place.raw.check_stat(&place.data).await.unwrap().unwrap();
    let (mut last, mut writes) = (made.czxid, made.version);
    for round in 0..30 {
        let guard = place.hold().await;
        let client = clients[round % 3].clone();
        let fence = Fence::of(&client, &place.spot.root, &guard).await.unwrap();
        let path = place.data.clone();
        let stubborn = tokio::spawn(async move {
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
                too_late(fence.write(|write| write.add_set_data(&path, b"late", None)).await);
            }
            (first, last, count)
        });
        clock::until("it writes", async || {
            place.raw.check_stat(&place.data).await.unwrap().unwrap().version > writes
        })
        .await;
        place.locks.break_lock(LOCK).force().await.unwrap();
        let next = place.hold().await;
        // The next one's client, elsewhere, while the other goes on.
        let client = clients[(round + 1) % 3].clone();
        let fence = Fence::of(&client, &place.spot.root, &next).await.unwrap();
        let seen = client.get_data(&place.data).await.unwrap().1;
        let mine = fence.write(|write| write.add_set_data(&place.data, b"next", Some(seen.version))).await;
        let [MultiWriteResult::SetData { stat: mine }] = &*mine.unwrap() else { panic!() };
        let (first, theirs, count) = tokio::time::timeout(PATIENCE, stubborn).await.unwrap().unwrap();
        assert!(first.unwrap() > last && theirs < mine.mzxid, "{first:?} to {theirs} {mine:?}");
        assert_eq!((seen.mzxid, seen.version), (theirs, writes + count), "all of it was there to read");
        (last, writes) = (mine.mzxid, mine.version);
        next.release().await.unwrap();
        drop(guard);
    }
}

/// The client may have a chroot. Whatever does not lead to the guard's own node is no fence.
#[tokio::test(flavor = "multi_thread")]
async fn it_is_of_the_very_grant_or_there_is_none() {
    let server = zookeeper::start(&[]).unwrap();
    let place = Place::at(&server).await;
    let root = &*place.spot.root;
    let raw = |chroot: &str| place.raw.clone().chroot(chroot.to_owned()).unwrap();
    let guard = place.hold().await;
    for (chroot, root) in [("/", format!("{root}/")), (root, root.to_owned())] {
        let client = raw(chroot);
        let fence = Fence::of(&client, &root, &guard).await.unwrap();
        assert!(client.check_stat(fence.path()).await.unwrap().is_some());
        client.create("/beside", b"", &KEPT).await.unwrap();
        fence.write(|write| write.add_set_data("/beside", b"x", None)).await.unwrap();
    }
    let of =
        async |client: &Client, root: &str, guard: &Guard| Fence::of(client, root, guard).await.unwrap_err();
    let error = of(&raw(&place.data), root, &guard).await;
    assert!(matches!(error, Error::OutOfReach { .. }), "{error:?}");
    let error = of(&place.raw, "/a//b", &guard).await;
    assert!(matches!(error, Error::InvalidRoot(_)), "{error:?}");
    let error = of(&place.raw, "/elsewhere", &guard).await;
    assert!(matches!(error, Error::NotFound { .. }), "{error:?}");

    // Another store, whose tokens come to the very same number: by an owner of another name, or of another lock.
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
    let error = of(&place.raw, root, &same).await;
    assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
    same.release().await.unwrap();

    let another = place.locks.lock("another").acquire().await.unwrap();
    let fences = [place.fence(&guard).await, place.fence(&another).await];
    assert_ne!(fences[0].path(), fences[1].path());
    place.locks.break_lock(LOCK).await.unwrap();
    // It keeps others out until its holder has stopped, and its writes are what it stops with.
    place.write(&fences[0], "marked").await.unwrap();
    place.locks.break_lock(LOCK).force().await.unwrap();
    too_late(place.write(&fences[0], "broken").await);
    place.write(&fences[1], "another").await.unwrap();
    // Nobody has told the guard yet.
    let error = of(&place.raw, root, &guard).await;
    assert!(matches!(error, Error::NotFound { .. } | Error::NoLongerHeld { .. }), "{error:?}");
    place.holds("another", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_the_stores_user_is_told() {
    let place = Place::at(zookeeper().unwrap()).await;
    let url = place.spot.with(SESSION).replace("://", "://me:s3cret@");
    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.lock(LOCK).acquire().await.unwrap();
    let error = Fence::of(&place.raw, &place.spot.root, &guard).await.unwrap_err();
    assert!(matches!(error, Error::Denied { source: Failure::NoAuth, .. }), "{error:?}");
    let known = place.spot.raw().await;
    known.auth("digest", b"me:s3cret").await.unwrap();
    let fence = Fence::of(&known, &place.spot.root, &guard).await.unwrap();
    place.write(&fence, "mine").await.unwrap();
    guard.release().await.unwrap();
    too_late(place.write(&fence, "late").await);
    place.holds("mine", 1).await;
}

/// A write whose answer is lost has been made, and with its version it is not made twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_not_taken_for_a_refusal() {
    let server = zookeeper::start(&[]).unwrap();
    let (place, proxy) = (Place::at(&server).await, Proxy::to(server.port()));
    let cut = Client::connect(&proxy.address().to_string()).await.unwrap();
    let guard = place.hold().await;
    let fence = Fence::of(&cut, &place.spot.root, &guard).await.unwrap();
    let write = async || fence.write(|write| write.add_set_data(&place.data, b"once", Some(0))).await;
    proxy.cut_reply_to(MULTI);
    let error = write().await.unwrap_err();
    assert!(matches!(error, Error::Unanswered { .. }), "{error:?}");
    assert_eq!(proxy.counts().cut_replies, 1);
    let error = write().await.unwrap_err();
    assert!(matches!(error, Error::Refused { index: Some(0), source: Failure::BadVersion }), "{error:?}");
    place.holds("once", 1).await;
    guard.release().await.unwrap();
    too_late(place.write(&fence, "late").await);
}
