//! Nothing stays behind: no row, no file growth, no task, no open file.

use std::time::Duration;

use futures_util::FutureExt;
use polylock_core::{Clock, Mode, SystemClock};
use polylock_sql::sqlite::{Durability, connect};

use crate::common::{TestFile, held, queued, request, request_with_ttl};

#[tokio::test]
async fn cycles_over_distinct_names_leave_no_row_and_a_small_file() {
    let file = TestFile::new();
    let store = connect(file.config().durability(Durability::Normal)).await.unwrap();
    for number in 0..3000 {
        let a = request(&format!("name/{number}"), Mode::Exclusive);
        held(&store, &a).await;
        store.backend.release(&a).await.unwrap();
    }
    assert_eq!(file.rows().await, 0);
    let size = |suffix: &str| {
        let mut path = file.path().into_os_string();
        path.push(suffix);
        std::fs::metadata(path).map_or(0, |found| found.len())
    };
    assert!(size("") < 256 * 1024, "{} bytes", size(""));
    assert!(size("-wal") < 8 * 1024 * 1024, "{} bytes", size("-wal"));
}

#[tokio::test]
async fn expired_rows_are_deleted_by_claims_of_the_same_and_other_names() {
    let file = TestFile::new();
    let store = connect(file.config().durability(Durability::Normal)).await.unwrap();
    let ttl = Duration::from_secs(2);
    for number in 0..10 {
        let name = format!("dead/{number}");
        held(&store, &request_with_ttl(&name, Mode::Shared, ttl)).await;
        held(&store, &request_with_ttl(&name, Mode::Shared, ttl)).await;
        queued(&store, &request_with_ttl(&name, Mode::Exclusive, ttl)).await;
    }
    assert_eq!(file.rows().await, 30);
    SystemClock.sleep_until(SystemClock.now() + ttl + Duration::from_millis(5)).await;
    let a = request("dead/0", Mode::Exclusive);
    held(&store, &a).await;
    store.backend.release(&a).await.unwrap();
    assert_eq!(file.rows().await, 27, "the name that was touched");
    for _ in 0..300 {
        let a = request("alive", Mode::Exclusive);
        held(&store, &a).await;
        store.backend.release(&a).await.unwrap();
    }
    assert_eq!(file.rows().await, 0, "the names that were not");
}

#[tokio::test]
async fn opening_the_store_deletes_expired_rows() {
    let file = TestFile::new();
    let store = file.store().await;
    held(&store, &request_with_ttl("n", Mode::Exclusive, Duration::from_millis(100))).await;
    drop(store);
    SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(105)).await;
    let _store = file.store().await;
    assert_eq!(file.rows().await, 0);
}

/// Returns the number of open files of this process in the directory of the store.
#[cfg(target_os = "linux")]
fn open_files(file: &TestFile) -> usize {
    let directory = file.path().parent().unwrap().canonicalize().unwrap();
    let links =
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| entry.ok()?.path().read_link().ok());
    links.filter(|target| target.starts_with(&directory)).count()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn dropping_the_store_ends_the_poller_and_closes_the_file() {
    let file = TestFile::new();
    let store = file.store().await;
    let (a, b) = (request("n", Mode::Exclusive), request("n", Mode::Exclusive));
    held(&store, &a).await;
    queued(&store, &b).await;
    assert!(store.backend.wait(&b).now_or_never().is_none());
    let polling = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(polling(), 1);
    assert!(open_files(&file) > 0);
    drop(store);
    let start = SystemClock.now();
    while polling() > 0 || open_files(&file) > 0 {
        assert!(SystemClock.now() < start + Duration::from_secs(5), "{} tasks", polling());
        SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn the_poller_ends_without_waiters_and_starts_again() {
    let file = TestFile::new();
    let store = file.store().await;
    let polling = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for _ in 0..3 {
        let (a, b) = (request("n", Mode::Exclusive), request("n", Mode::Exclusive));
        held(&store, &a).await;
        assert_eq!(polling(), 0);
        queued(&store, &b).await;
        assert!(store.backend.wait(&b).now_or_never().is_none());
        assert_eq!(polling(), 1);
        store.backend.release(&b).await.unwrap();
        store.backend.release(&a).await.unwrap();
        let start = SystemClock.now();
        while polling() > 0 {
            assert!(SystemClock.now() < start + Duration::from_secs(5));
            SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(1)).await;
        }
    }
}

/// A user with read access can see the request ids that release the locks.
#[cfg(unix)]
#[tokio::test]
async fn a_new_file_is_private_and_an_existing_file_keeps_its_permissions() {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};
    let file = TestFile::new();
    let store = file.store().await;
    held(&store, &request("n", Mode::Exclusive)).await;
    let rights = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for entry in std::fs::read_dir(file.path().parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(rights(&path), 0o600, "{path:?}");
        assert!(!path.to_string_lossy().contains("-new-"), "{path:?}");
    }
    drop(store);
    std::fs::set_permissions(file.path(), Permissions::from_mode(0o660)).unwrap();
    held(&file.store().await, &request("m", Mode::Exclusive)).await;
    assert_eq!(rights(&file.path()), 0o660);
}
