//! Users and passwords: the access that they restrict, and their absence from all output.

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
    alone,
    servers::{
        PrivateServer,
        zookeeper::{self, PASSWORD as SASL_PASSWORD, USER as SASL_USER},
    },
    stores::wait_for_waiters,
    trace,
};
use zookeeper_client::Error as Failure;

use super::{Namespace, SLACK, check_all_operations, describe, refusal};

/// A password with all characters that have a meaning in a URL, for the servers, or in a list of users.
const PASSWORD: &str = "p@s:s/w#o?r%d&=+ ~ü\"',";

/// The default time limit for opening a store.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Returns the URL with this user.
fn with_user(url: &str, user: &str, password: &str) -> String {
    url.replace("://", &format!("://{user}:{}@", encoded(password)))
}

fn check_denied<T: Debug>(what: &str, outcome: Result<T, Error>) {
    let (fault, text) = describe(&outcome.expect_err(what));
    assert!(
        fault == Some(Fault::Denied) && text.contains("check the user and the password"),
        "{what}: {text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_reported_with_a_remedy() {
    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let right = with_user(&namespace.url, "app", PASSWORD);
    check_all_operations(&right).await;
    let wrong = [
        with_user(&namespace.url, "app", "canary"),
        with_user(&namespace.url, "other", PASSWORD),
        namespace.url.clone(),
    ];
    for url in wrong {
        let (fault, text, took) = refusal(&url).await;
        assert!(fault == Some(Fault::Denied), "{text}");
        assert!(text.contains("check the user and the password") && !text.contains("canary"), "{text}");
        assert!(took < CONNECT_TIMEOUT + SLACK, "{took:?}");
    }
    check_all_operations(&right).await;
}

/// Two users share a path, but not their locks.
#[tokio::test(flavor = "multi_thread")]
async fn locks_of_another_user_can_be_neither_acquired_nor_seen_nor_broken() {
    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let anonymous = Locks::connect(&namespace.url).await.unwrap();
    let owner = Locks::connect(&with_user(&namespace.url, "app", PASSWORD)).await.unwrap();
    let other = Locks::connect(&with_user(&namespace.url, "other", PASSWORD)).await.unwrap();
    let guard = owner.lock("a").acquire().await.unwrap();
    for (user, locks) in [("anonymous", &anonymous), ("other", &other)] {
        check_denied(user, locks.lock("a").try_acquire().await);
        check_denied(user, locks.lock("a").acquire().await);
        check_denied(user, locks.inspect("a").await);
        for order in [locks.break_lock("a"), locks.break_lock("a").force()] {
            let error = order.await.expect_err(user);
            assert!(describe(&error).1.contains("or see polylock.access"), "{error:?}");
            check_denied(user, Err::<(), _>(error));
        }
        // It can acquire and break its own locks.
        let own = locks.lock(user).acquire().await.unwrap();
        assert_eq!(locks.break_lock(user).await.unwrap().len(), 1);
        assert!(matches!(own.lost().await, LostReason::Broken(_)));
        drop(own);
        locks.lock(user).acquire().await.unwrap().release().await.unwrap();
    }
    let raw = namespace.client().await;
    raw.auth("digest", b"other:guessed").await.unwrap();
    let requests = format!("{}/a", namespace.root);
    assert_eq!(raw.list_children(&requests).await, Err(Failure::NoAuth));
    assert_eq!(raw.delete(&requests, None).await, Err(Failure::NotEmpty));
    assert!(guard.renewed().await.is_some());
    guard.release().await.unwrap();
    owner.lock("a").acquire().await.unwrap().release().await.unwrap();
}

/// The servers check the password with each create, so waiters need it, too.
#[tokio::test(flavor = "multi_thread")]
async fn clients_with_the_same_password_share_the_locks() {
    let server = zookeeper::start(&[]).unwrap();
    let url = with_user(&Namespace::of(&server).url, "app", PASSWORD);
    let (here, there) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let guard = here.lock("a").acquire().await.unwrap();
    let waiting = tokio::spawn(there.lock("a").acquire());
    wait_for_waiters(&here, "a", 1).await;
    assert_eq!(there.break_lock("a").await.unwrap().len(), 1);
    assert!(matches!(guard.lost().await, LostReason::Broken(_)));
    guard.release().await.ok();
    let next = waiting.await.unwrap().unwrap();
    assert_eq!(here.break_lock("a").force().await.unwrap().len(), 1);
    assert!(matches!(next.lost().await, LostReason::Broken(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn sasl_needs_the_password() {
    let server = zookeeper::start_sasl(&[]).unwrap();
    check_all_operations(server.url()).await;
    let with = |user: &str| server.url().replace(&format!("{SASL_USER}:{SASL_PASSWORD}@"), user);
    let plain = with("").replace("?polylock.auth=sasl-digest-md5", "");
    let wrong = [with(&format!("{SASL_USER}:canary@")), with("nobody:canary@"), plain];
    for url in wrong {
        let (fault, text, took) = refusal(&url).await;
        assert!(fault == Some(Fault::Denied), "{text}");
        assert!(text.contains("check the user and the password") && !text.contains("canary"), "{text}");
        assert!(took < CONNECT_TIMEOUT + SLACK, "{took:?}");
    }
}

/// All missing nodes of the path are created, and existing ones are not changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_path_is_created() {
    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    for url in
        [format!("{}/a/b", namespace.url), with_user(&format!("{}/c/d/e", namespace.url), "app", PASSWORD)]
    {
        check_all_operations(&url).await;
        check_all_operations(&url).await;
    }
    let raw = namespace.client().await;
    let mut children = raw.list_children(&namespace.root).await.unwrap();
    children.sort();
    assert_eq!(children, ["a", "c"]);
    let mut children = raw.list_children(&format!("{}/a/b", namespace.root)).await.unwrap();
    children.sort();
    assert_eq!(children, [".breaks", "all"], "the lock, and the announcement of its breaks");
}

/// The traced lines that contain a secret.
struct TraceFilter {
    driver_lines: AtomicU64,
    leaks: Mutex<Vec<String>>,
}

static FILTER: TraceFilter = TraceFilter { driver_lines: AtomicU64::new(0), leaks: Mutex::new(Vec::new()) };

const CANARY: &str = "kanarienvogel";

impl TraceFilter {
    fn record(&self, target: &str, line: &str) {
        if target.starts_with("zookeeper_client") {
            self.driver_lines.fetch_add(1, Ordering::Relaxed);
        }
        if has_secret(line) {
            self.leaks.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
        }
    }
}

/// Returns true if `text` contains the password in one of the usual encodings.
fn has_secret(text: &str) -> bool {
    let hex: String = CANARY.bytes().map(|byte| format!("{byte:02x}")).collect();
    let bytes = format!("{:?}", CANARY.as_bytes());
    let text = text.to_lowercase();
    [CANARY, &hex, bytes.trim_matches(['[', ']'])].iter().any(|form| text.contains(form))
}

alone! { the_password_appears_in_no_output_and_no_trace }

async fn the_password_appears_in_no_output_and_no_trace() {
    trace::listen(|target, line| FILTER.record(target, line));
    tracing::debug!("its password is {CANARY}");
    let planted = std::mem::take(&mut *FILTER.leaks.lock().unwrap());
    assert_eq!(planted.len(), 1, "a secret is found");

    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let sasl = zookeeper::start_sasl(&[]).unwrap();
    let url = with_user(&namespace.url, "app", CANARY);
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
    for url in [
        with_user(&namespace.url, "other", CANARY),
        sasl_url,
        with_user("zookeeper://127.0.0.1:1", "app", CANARY),
    ] {
        texts.push(refusal(&url).await.1);
    }
    // Authenticates again on another connection.
    restart(&server);
    let error = locks.lock("a").try_acquire().await.map(drop);
    texts.push(format!("{error:?}"));
    drop(guard);
    drop(locks);
    for text in texts {
        assert!(!has_secret(&text), "{text}");
    }
    assert!(FILTER.driver_lines.load(Ordering::Relaxed) > 20, "the driver was not traced");
    assert_eq!(*FILTER.leaks.lock().unwrap(), [""; 0]);
}

fn restart(server: &PrivateServer) {
    tokio::task::block_in_place(|| server.restart());
}
