//! What goes wrong, and what the caller is told.

use std::{error::Error as _, time::Duration};

use polylock_core::{
    Clock, Error, Fault, KeepAlive, LostReason, Mode, Operation, Result, Store, SystemClock,
};
use polylock_sql::sqlite::{Config, Durability, connect};
use sqlx::Executor;

use crate::common::{File, held, keep_alive, queued, request};

/// The fault of a store that can't be used, and all that is said about it.
fn fault(result: Result<Store>) -> (Fault, String) {
    let Err(Error::Unavailable(error)) = result else { panic!("should be unavailable: {result:?}") };
    assert_eq!((error.operation, error.backend), (Operation::Connect, "sqlite"));
    let said = format!("{error}: {}", error.source().unwrap());
    (error.fault, said)
}

#[tokio::test]
async fn a_path_that_is_no_database_is_refused_for_good_and_named() {
    let file = File::new();
    let directory = file.path().parent().unwrap().to_owned();
    let (found, said) = fault(connect(Config::new(&directory)).await);
    assert_eq!(found, Fault::Permanent);
    assert!(said.contains("is a directory"), "{said}");

    let text = directory.join("text");
    std::fs::write(&text, "no database, but longer than the header of one ".repeat(40)).unwrap();
    let (found, said) = fault(connect(Config::new(&text)).await);
    assert_eq!(found, Fault::Permanent);
    assert!(said.contains("no SQLite database") && said.contains("text"), "{said}");

    let (found, said) = fault(connect(Config::new(text.join("below"))).await);
    assert_eq!(found, Fault::Permanent, "{said}");
}

#[tokio::test]
async fn missing_directories_are_made() {
    let file = File::new();
    let path = file.path().parent().unwrap().join("a/b/locks.db");
    let store = connect(Config::new(&path)).await.unwrap();
    held(&store, &request("n", Mode::Exclusive)).await;
    assert!(path.exists());
}

#[tokio::test]
async fn odd_paths_are_taken_literally() {
    let file = File::new();
    let directory = file.path().parent().unwrap().to_owned();
    for name in ["a b?c=d#e%20f.db", "it's \"ü\".db", "*"] {
        let path = directory.join(name);
        let store = connect(Config::new(&path)).await.unwrap();
        held(&store, &request("n", Mode::Exclusive)).await;
        assert!(path.exists(), "{name}");
    }
}

#[tokio::test]
async fn a_damaged_file_is_told_as_such() {
    let file = File::new();
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
async fn a_foreign_writer_is_waited_for_and_told_of_in_the_end() {
    let file = File::new();
    let store = connect(file.config().busy_timeout(Duration::from_millis(200))).await.unwrap();
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
    assert!(took >= Duration::from_millis(150) && took < Duration::from_secs(2), "{took:?}");
    for error in [claim, renew, release] {
        assert!(error.is_temporary(), "{error:?}");
    }
    // It ends while an operation waits for it.
    let (place, _) = futures_util::future::join(queued(&store, &b), async {
        SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(50)).await;
        raw.execute("COMMIT").await.unwrap();
    })
    .await;
    assert_eq!(place.ahead, Some(1));
    store.backend.release(&a).await.unwrap();
    held(&store, &b).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_that_is_deleted_in_use_is_left_for_the_one_in_its_place() {
    let file = File::new();
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
async fn tables_that_vanish_are_an_error_and_never_a_grant() {
    let file = File::new();
    let store = file.store().await;
    let mut raw = file.raw().await;
    raw.execute("DROP TABLE polylock_holds").await.unwrap();
    let a = request("n", Mode::Exclusive);
    assert!(store.backend.claim(&a).await.is_err());
    assert!(keep_alive(&store, &a).await.is_err());
    assert!(store.backend.release(&a).await.is_err());
}

#[tokio::test]
async fn a_later_version_of_the_tables_is_refused_and_another_prefix_helps() {
    let file = File::new();
    drop(file.store().await);
    file.raw().await.execute("UPDATE polylock_meta SET value = 9").await.unwrap();
    let Err(Error::Config(error)) = connect(file.config()).await else { panic!("should be refused") };
    assert_eq!(error.key, "polylock.table");
    assert!(error.problem.contains("later version"), "{error}");
    let store = connect(file.config().table("other")).await.unwrap();
    held(&store, &request("n", Mode::Exclusive)).await;
}

#[tokio::test]
async fn prefixes_keep_locks_apart_and_leave_other_tables_alone() {
    let file = File::new();
    file.raw_new().await.execute("CREATE TABLE mine (x); INSERT INTO mine VALUES (1)").await.unwrap();
    let (one, two) = (file.store().await, connect(file.config().table("b")).await.unwrap());
    held(&one, &request("n", Mode::Exclusive)).await;
    held(&two, &request("n", Mode::Exclusive)).await;
    let mine: i64 = sqlx::query_scalar("SELECT x FROM mine").fetch_one(&mut file.raw().await).await.unwrap();
    assert_eq!(mine, 1);
}

#[tokio::test]
async fn in_memory_databases_are_refused_and_the_way_out_is_named() {
    for path in [":memory:", "file::memory:?cache=shared", "", ":memory:x"] {
        let Err(Error::Config(error)) = connect(Config::new(path)).await else {
            panic!("{path} should be refused")
        };
        assert_eq!(error.key, "store");
    }
}

/// Many open the same new file at once, each with an io of its own kind: all see the same locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_file_may_be_opened_by_many_at_once() {
    for _ in 0..5 {
        let file = File::new();
        let opening: Vec<_> = (0..8).map(|_| tokio::spawn(connect(file.config()))).collect();
        let mut holders = 0;
        for store in opening {
            let store = store.await.unwrap().unwrap();
            let mut a = request("n", Mode::Exclusive);
            a.queues = false;
            holders += usize::from(matches!(
                store.backend.claim(&a).await.unwrap(),
                polylock_core::Standing::Held(_)
            ));
        }
        assert_eq!(holders, 1);
    }
}

#[tokio::test]
async fn capabilities_say_what_a_power_cut_costs() {
    let file = File::new();
    assert_eq!(file.store().await.backend.capabilities().fencing, polylock_core::Fencing::Durable);
    let relaxed = connect(file.config().durability(Durability::Normal)).await.unwrap();
    assert_eq!(relaxed.backend.capabilities().fencing, polylock_core::Fencing::WhileRunning);
}

#[tokio::test]
async fn what_is_no_file_is_refused_for_good() {
    let (fault, text) = fault(connect(Config::new("/dev/null")).await);
    assert!(fault == Fault::Permanent && text.contains("no regular file"), "{text}");
}
