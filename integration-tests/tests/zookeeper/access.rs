//! Users and passwords, what they keep from others, and that they show nowhere.

use std::{
    fmt::Debug,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use polylock::{Error, Fault, Locks, LostReason};
use polylock_integration_tests::{
    servers::{
        Private,
        zookeeper::{self, PASSWORD as SASL_PASSWORD, USER as SASL_USER},
    },
    trace,
};
use zookeeper_client::Error as Failure;

use crate::{SLACK, Spot, everything_works, refusal, told, waiters};

/// A password with everything that means something in a URL, to the servers, or in a list of users.
const PASSWORD: &str = "p@s:s/w#o?r%d&=+ ~ü\"',";

/// How long it may take to open a store: the default.
const CONNECT: Duration = Duration::from_secs(5);

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// The URL, of this user.
fn by(url: &str, user: &str, password: &str) -> String {
    url.replace("://", &format!("://{user}:{}@", encoded(password)))
}

fn is_denied<T: Debug>(what: &str, outcome: Result<T, Error>) {
    let (fault, text) = told(&outcome.expect_err(what));
    assert!(
        fault == Some(Fault::Denied) && text.contains("check the user and the password"),
        "{what}: {text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_shows_another_password_is_told_what_to_check() {
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let right = by(&spot.url, "app", PASSWORD);
    everything_works(&right).await;
    let wrong = [by(&spot.url, "app", "canary"), by(&spot.url, "other", PASSWORD), spot.url.clone()];
    for url in wrong {
        let (fault, text, took) = refusal(&url).await;
        assert!(fault == Some(Fault::Denied), "{text}");
        assert!(text.contains("check the user and the password") && !text.contains("canary"), "{text}");
        assert!(took < CONNECT + SLACK, "{took:?}");
    }
    everything_works(&right).await;
}

/// Two share a path that both may use, and not their locks.
#[tokio::test(flavor = "multi_thread")]
async fn the_lock_of_another_user_can_be_neither_taken_nor_seen_nor_broken() {
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let nobody = Locks::connect(&spot.url).await.unwrap();
    let owner = Locks::connect(&by(&spot.url, "app", PASSWORD)).await.unwrap();
    let other = Locks::connect(&by(&spot.url, "other", PASSWORD)).await.unwrap();
    let guard = owner.lock("a").acquire().await.unwrap();
    for (who, locks) in [("nobody", &nobody), ("other", &other)] {
        is_denied(who, locks.lock("a").try_acquire().await);
        is_denied(who, locks.lock("a").acquire().await);
        is_denied(who, locks.inspect("a").await);
        for order in [locks.break_lock("a"), locks.break_lock("a").force()] {
            let error = order.await.expect_err(who);
            assert!(told(&error).1.contains("or see polylock.access"), "{error:?}");
            is_denied(who, Err::<(), _>(error));
        }
        // Its own ones it has, and may break.
        let own = locks.lock(who).acquire().await.unwrap();
        assert_eq!(locks.break_lock(who).await.unwrap().len(), 1);
        assert!(matches!(own.lost().await, LostReason::Broken(_)));
        drop(own);
        locks.lock(who).acquire().await.unwrap().release().await.unwrap();
    }
    let raw = spot.raw().await;
    raw.auth("digest", b"other:guessed").await.unwrap();
    let requests = format!("{}/a", spot.root);
    assert_eq!(raw.list_children(&requests).await, Err(Failure::NoAuth));
    assert_eq!(raw.delete(&requests, None).await, Err(Failure::NotEmpty));
    assert!(guard.renewed().await.is_some());
    guard.release().await.unwrap();
    owner.lock("a").acquire().await.unwrap().release().await.unwrap();
}

/// The password is what a create is checked against, so a waiter has its place by it, too.
#[tokio::test(flavor = "multi_thread")]
async fn all_who_have_the_password_share_the_locks() {
    let server = zookeeper::start(&[]).unwrap();
    let url = by(&Spot::of(&server).url, "app", PASSWORD);
    let (here, there) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let guard = here.lock("a").acquire().await.unwrap();
    let waiting = tokio::spawn(there.lock("a").acquire());
    waiters(&here, "a", 1).await;
    assert_eq!(there.break_lock("a").await.unwrap().len(), 1);
    assert!(matches!(guard.lost().await, LostReason::Broken(_)));
    guard.release().await.ok();
    let next = waiting.await.unwrap().unwrap();
    assert_eq!(here.break_lock("a").force().await.unwrap().len(), 1);
    assert!(matches!(next.lost().await, LostReason::Broken(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn by_sasl_with_the_password_and_not_without() {
    let server = zookeeper::start_sasl(&[]).unwrap();
    everything_works(server.url()).await;
    let with = |user: &str| server.url().replace(&format!("{SASL_USER}:{SASL_PASSWORD}@"), user);
    let plain = with("").replace("?polylock.auth=sasl-digest-md5", "");
    let wrong = [with(&format!("{SASL_USER}:canary@")), with("nobody:canary@"), plain];
    for url in wrong {
        let (fault, text, took) = refusal(&url).await;
        assert!(fault == Some(Fault::Denied), "{text}");
        assert!(text.contains("check the user and the password") && !text.contains("canary"), "{text}");
        assert!(took < CONNECT + SLACK, "{took:?}");
    }
}

/// The path of a URL is made, as deep as it is, and what is there of it stays as it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_is_not_there_is_made() {
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    for url in [format!("{}/a/b", spot.url), by(&format!("{}/c/d/e", spot.url), "app", PASSWORD)] {
        everything_works(&url).await;
        everything_works(&url).await;
    }
    let raw = spot.raw().await;
    let mut there = raw.list_children(&spot.root).await.unwrap();
    there.sort();
    assert_eq!(there, ["a", "c"]);
    let mut there = raw.list_children(&format!("{}/a/b", spot.root)).await.unwrap();
    there.sort();
    assert_eq!(there, [".breaks", "all"], "the lock, and the announcement of its breaks");
}

/// Every line that is traced, of which those stay that show a secret.
struct Ear {
    heard: AtomicU64,
    shown: Mutex<Vec<String>>,
}

static EAR: Ear = Ear { heard: AtomicU64::new(0), shown: Mutex::new(Vec::new()) };

const CANARY: &str = "kanarienvogel";

impl Ear {
    fn hear(&self, target: &str, line: &str) {
        if target.starts_with("zookeeper_client") {
            self.heard.fetch_add(1, Ordering::Relaxed);
        }
        if shows(line) {
            self.shown.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
        }
    }
}

/// Whether the password is in `text`, in one of the ways in which bytes are shown.
fn shows(text: &str) -> bool {
    let hex: String = CANARY.bytes().map(|byte| format!("{byte:02x}")).collect();
    let bytes = format!("{:?}", CANARY.as_bytes());
    let text = text.to_lowercase();
    [CANARY, &hex, bytes.trim_matches(['[', ']'])].iter().any(|form| text.contains(form))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_password_is_in_nothing_that_is_shown_or_traced() {
    trace::listen(|target, line| EAR.hear(target, line));
    tracing::debug!("its password is {CANARY}");
    let planted = std::mem::take(&mut *EAR.shown.lock().unwrap());
    assert_eq!(planted.len(), 1, "what is shown is found");

    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let sasl = zookeeper::start_sasl(&[]).unwrap();
    let url = by(&spot.url, "app", CANARY);
    let mut texts = Vec::new();
    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    texts.push(format!("{locks:?} {:?} {guard:?}", locks.lock("a")));
    texts.push(format!(
        "{:?} {:?}",
        locks.inspect("a").await.unwrap(),
        polylock_zookeeper::Config::new(&url)
    ));
    texts.push(format!("{:?}", locks.lock("a").wait(Duration::ZERO).acquire().await.unwrap_err()));
    let sasl_url = sasl.url().replace(SASL_PASSWORD, CANARY);
    for url in [by(&spot.url, "other", CANARY), sasl_url, by("zookeeper://127.0.0.1:1", "app", CANARY)] {
        texts.push(refusal(&url).await.1);
    }
    // Once more, with the user, on another connection.
    restarted(&server);
    let error = locks.lock("a").try_acquire().await.map(drop);
    texts.push(format!("{error:?}"));
    drop(guard);
    drop(locks);
    for text in texts {
        assert!(!shows(&text), "{text}");
    }
    assert!(EAR.heard.load(Ordering::Relaxed) > 20, "the driver is heard");
    assert_eq!(*EAR.shown.lock().unwrap(), [""; 0]);
}

fn restarted(server: &Private) {
    tokio::task::block_in_place(|| server.restart());
}
