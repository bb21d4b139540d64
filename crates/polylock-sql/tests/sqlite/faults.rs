//! Failures, and the errors that the caller receives.

use std::{error::Error as _, time::Duration};

use polylock_core::{
    Clock, Error, Fault, KeepAlive, LostReason, Mode, Operation, Result, Store, SystemClock,
};
use polylock_sql::sqlite::{Config, Durability, connect};
use sqlx::Executor;

use crate::common::{TestFile, held, keep_alive, queued, request};

/// Returns the fault of a store that can't be used, and its whole message.
fn connect_fault(result: Result<Store>) -> (Fault, String) {
    let Err(Error::Unavailable(error)) = result else { panic!("should be unavailable: {result:?}") };
    assert_eq!((error.operation, error.backend), (Operation::Connect, "sqlite"));
    let message = format!("{error}: {}", error.source().unwrap());
    (error.fault, message)
}

#[tokio::test]
async fn a_path_that_is_not_a_database_is_a_permanent_error() {
    let file = TestFile::new();
    let directory = file.path().parent().unwrap().to_owned();
    let (fault, message) = connect_fault(connect(Config::new(&directory)).await);
    assert_eq!(fault, Fault::Permanent);
    assert!(message.contains("is a directory"), "{message}");

    let text = directory.join("text");
    std::fs::write(&text, "no database, but longer than the header of one ".repeat(40)).unwrap();
    let (fault, message) = connect_fault(connect(Config::new(&text)).await);
    assert_eq!(fault, Fault::Permanent);
    assert!(message.contains("not a SQLite database") && message.contains("text"), "{message}");

    let (fault, message) = connect_fault(connect(Config::new(text.join("below"))).await);
    assert_eq!(fault, Fault::Permanent, "{message}");
}

#[tokio::test]
async fn missing_directories_are_created() {
    let file = TestFile::new();
    let path = file.path().parent().unwrap().join("a/b/locks.db");
    let store = connect(Config::new(&path)).await.unwrap();
    held(&store, &request("n", Mode::Exclusive)).await;
    assert!(path.exists());
}

#[tokio::test]
async fn odd_paths_are_taken_literally() {
    let file = TestFile::new();
    let directory = file.path().parent().unwrap().to_owned();
    for name in ["a b?c=d#e%20f.db", "it's \"ü\".db", "*"] {
        let path = directory.join(name);
        let store = connect(Config::new(&path)).await.unwrap();
        held(&store, &request("n", Mode::Exclusive)).await;
        assert!(path.exists(), "{name}");
    }
}

#[tokio::test]
async fn a_damaged_file_is_a_permanent_error() {
    let file = TestFile::new();
    let store = file.store().await;
    held(&store, &request("n", Mode::Exclusive)).await;
    drop(store);
    let mut raw = file.raw().await;
    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").await.unwrap();
    sqlx::Connection::close(raw).await.unwrap();
    let mut bytes = std::fs::read(file.path()).unwrap();
    bytes[4096..].fill(0x5a);
    std::fs::write(file.path(), bytes).unwrap();
    let broken = async {
        let store = file.store_or_error().await?;
        store.backend.claim(&request("n", Mode::Exclusive)).await.map(drop)
    };
    let error = broken.await.unwrap_err();
    let Error::Unavailable(error) = error else { panic!("{error:?}") };
    assert_eq!(error.fault, Fault::Permanent, "{error:?}");
}

#[tokio::test]
async fn a_lock_of_another_writer_is_waited_for_until_the_busy_timeout() {
    let file = TestFile::new();
    let store = connect(file.config().operation_timeout(Duration::from_secs(2))).await.unwrap();
    let (a, b) = (request("n", Mode::Exclusive), request("n", Mode::Exclusive));
    held(&store, &a).await;
    let mut raw = file.raw().await;
    raw.execute("BEGIN IMMEDIATE").await.unwrap();
    let start = SystemClock.now();
    let failures = futures_util::future::join3(
        async { store.backend.claim(&b).await.unwrap_err() },
        async { keep_alive(&store, &a).await.unwrap_err() },
        async { store.backend.release(&b).await.unwrap_err() },
    );
    let (claim, renew, release) = failures.await;
    let took = SystemClock.now().since(start);
    // Each waits for its turn among the writers, and then for the other transaction.
    assert!(took >= Duration::from_millis(1900) && took < Duration::from_secs(6), "{took:?}");
    for error in [claim, renew, release] {
        assert!(error.is_temporary(), "{error:?}");
    }
    // The other transaction ends while an operation waits for it.
    let (position, _) = futures_util::future::join(queued(&store, &b), async {
        SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(50)).await;
        raw.execute("COMMIT").await.unwrap();
    })
    .await;
    assert_eq!(position.ahead, Some(1));
    store.backend.release(&a).await.unwrap();
    held(&store, &b).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_deleted_in_use_is_replaced_by_the_new_file() {
    let file = TestFile::new();
    let (one, two) = (file.store().await, file.store().await);
    let [a, b, c] = [(); 3].map(|()| request("n", Mode::Exclusive));
    held(&one, &a).await;
    for suffix in ["", "-wal", "-shm"] {
        std::fs::remove_file(format!("{}{suffix}", file.path().display())).unwrap();
    }
    held(&two, &b).await;
    assert_eq!(keep_alive(&one, &a).await.unwrap(), KeepAlive::Lost(LostReason::Gone));
    assert_eq!(queued(&one, &c).await.ahead, Some(1));
    two.backend.release(&b).await.unwrap();
    held(&one, &c).await;
    assert_eq!(two.inspect.unwrap().list("").await.unwrap().len(), 1);
}

#[tokio::test]
async fn dropped_tables_are_an_error_and_never_a_grant() {
    let file = TestFile::new();
    let store = file.store().await;
    let mut raw = file.raw().await;
    raw.execute("DROP TABLE polylock_holds").await.unwrap();
    let a = request("n", Mode::Exclusive);
    assert!(store.backend.claim(&a).await.is_err());
    assert!(keep_alive(&store, &a).await.is_err());
    assert!(store.backend.release(&a).await.is_err());
}

#[tokio::test]
async fn tables_on_which_other_code_runs_are_refused() {
    let file = TestFile::new();
    drop(file.store().await);
    let mut raw = file.raw().await;
    raw.execute("CREATE TRIGGER keep BEFORE DELETE ON polylock_holds BEGIN SELECT RAISE(IGNORE); END")
        .await
        .unwrap();
    let (fault, message) = connect_fault(connect(file.config()).await);
    assert_eq!(fault, Fault::Permanent);
    assert!(message.contains("DROP TRIGGER for keep on polylock_holds"), "{message}");
    raw.execute("DROP TRIGGER keep; CREATE TABLE mine (x); CREATE TRIGGER mine AFTER INSERT ON mine BEGIN SELECT 1; END")
        .await
        .unwrap();
    file.store().await;
}

#[tokio::test]
async fn tables_of_a_later_version_are_refused_and_another_prefix_is_accepted() {
    let file = TestFile::new();
    drop(file.store().await);
    file.raw().await.execute("UPDATE polylock_meta SET value = 9").await.unwrap();
    let Err(Error::Config(error)) = connect(file.config()).await else { panic!("should be refused") };
    assert_eq!(error.key, "polylock.namespace");
    assert!(error.problem.contains("later version"), "{error}");
    let store = connect(file.config().namespace("other")).await.unwrap();
    held(&store, &request("n", Mode::Exclusive)).await;
}

#[tokio::test]
async fn prefixes_separate_locks_and_leave_other_tables_unchanged() {
    let file = TestFile::new();
    file.raw_new().await.execute("CREATE TABLE mine (x); INSERT INTO mine VALUES (1)").await.unwrap();
    let (one, two) = (file.store().await, connect(file.config().namespace("b")).await.unwrap());
    held(&one, &request("n", Mode::Exclusive)).await;
    held(&two, &request("n", Mode::Exclusive)).await;
    let mine: i64 = sqlx::query_scalar("SELECT x FROM mine").fetch_one(&mut file.raw().await).await.unwrap();
    assert_eq!(mine, 1);
}

#[tokio::test]
async fn in_memory_databases_are_refused() {
    for path in [":memory:", "file::memory:?cache=shared", "", ":memory:x"] {
        let Err(Error::Config(error)) = connect(Config::new(path)).await else {
            panic!("{path} should be refused")
        };
        assert_eq!(error.key, "store");
    }
}

/// Many tasks open the same new file at once: all see the same locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_file_may_be_opened_by_many_tasks_at_once() {
    for _ in 0..5 {
        let file = TestFile::new();
        let opening: Vec<_> = (0..8).map(|_| tokio::spawn(connect(file.config()))).collect();
        let (mut holders, mut stores) = (0, Vec::new());
        for store in opening {
            // The hold of a store that is closed is superseded.
            stores.push(store.await.unwrap().unwrap());
            let store = &stores[stores.len() - 1];
            let mut a = request("n", Mode::Exclusive);
            a.queues = false;
            holders += usize::from(matches!(
                store.backend.claim(&a).await.unwrap(),
                polylock_core::ClaimOutcome::Granted(_)
            ));
        }
        assert_eq!(holders, 1);
    }
}

#[tokio::test]
async fn capabilities_report_the_effect_of_a_power_cut() {
    let file = TestFile::new();
    assert_eq!(file.store().await.backend.capabilities().fencing, polylock_core::Fencing::Durable);
    let relaxed = connect(file.config().durability(Durability::Normal)).await.unwrap();
    assert_eq!(relaxed.backend.capabilities().fencing, polylock_core::Fencing::WhileRunning);
}

#[tokio::test]
async fn a_device_instead_of_a_file_is_a_permanent_error() {
    let (fault, text) = connect_fault(connect(Config::new("/dev/null")).await);
    assert!(fault == Fault::Permanent && text.contains("not a regular file"), "{text}");
}
