//! A full disk: a real file system of half a megabyte.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use polylock_core::{ClaimOutcome, Error, Fault, LockName, Mode, Request, Store};
use polylock_sql::sqlite::{Config, connect};
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};

use super::common::request;

/// The variable with the path of the small file system, in the process that has it.
const SMALL_DISK: &str = "POLYLOCK_TEST_SMALL_DISK";

/// Runs this test again as a process with a small file system of its own; false, with a message, if this user may not have one.
fn on_a_small_disk(test: &str) -> bool {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().to_str().unwrap();
    let script = "mount -t tmpfs -o size=512k tmpfs \"$1\" || exit 99; shift; exec \"$@\"";
    let run = |options: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(options).args(["--mount", "sh", "-c", script, "sh", path]);
        command
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(SMALL_DISK, path);
        command.output().unwrap_or_else(|error| panic!("unshare (of util-linux, in every Debian): {error}"))
    };
    for options in [&[][..], &["--user", "--map-root-user"]] {
        let output = run(options);
        let text =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        if text.contains("test result: ") {
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
            return true;
        }
        eprintln!("{text}");
    }
    eprintln!("skipped: this user may not mount a file system of its own");
    false
}

/// Writes a file until the disk is full.
fn fill(directory: &Path) -> PathBuf {
    let path = directory.join("filler");
    let mut file = fs::File::create(&path).unwrap();
    for block in [4096, 1] {
        while file.write_all(&vec![7; block]).is_ok() {}
    }
    path
}

fn assert_full(error: &Error) {
    let Error::Unavailable(unavailable) = error else { panic!("{error:?}") };
    assert_eq!(unavailable.fault, Fault::Permanent, "{error:?}");
    assert!(unavailable.source.to_string().ends_with("the disk is full"), "{error:?}");
}

/// Claims locks until one is refused. Returns the requests that were granted, and the one that was refused.
async fn claim_all(store: &Store) -> (Vec<Request>, Request) {
    let mut granted = Vec::new();
    loop {
        // A long name, so that few locks are needed.
        let request = request(&format!("{:0>250}", granted.len()), Mode::Exclusive);
        match store.backend.claim(&request).await {
            Ok(ClaimOutcome::Granted(_)) => granted.push(request),
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert_full(&error);
                return (granted, request);
            }
        }
        assert!(granted.len() < 10_000, "the disk is not full");
    }
}

async fn holders(store: &Store, name: &LockName) -> usize {
    store.inspect.as_ref().unwrap().inspect(name).await.unwrap().holders.len()
}

#[tokio::test]
async fn a_full_disk_grants_no_lock_and_loses_none() {
    let Some(directory) = std::env::var_os(SMALL_DISK).map(PathBuf::from) else {
        on_a_small_disk("full::a_full_disk_grants_no_lock_and_loses_none");
        return;
    };
    let file = directory.join("locks.db");
    let store = connect(Config::new(&file)).await.unwrap();
    let held = request("held before", Mode::Exclusive);
    let ClaimOutcome::Granted(first) = store.backend.claim(&held).await.unwrap() else {
        panic!("it is free")
    };

    let filler = fill(&directory);
    let (granted, refused) = claim_all(&store).await;
    // Every granted lock is held, and the refused one is not.
    assert_eq!(holders(&store, &refused.name).await, 0);
    for request in granted.iter().chain([&held]) {
        assert_eq!(holders(&store, &request.name).await, 1);
    }
    let waiting = request("held before", Mode::Exclusive);
    match store.backend.claim(&waiting).await {
        Ok(ClaimOutcome::Queued(_)) => {}
        Ok(granted) => panic!("it is held: {granted:?}"),
        Err(error) => assert_full(&error),
    }
    // A new store can't be opened either.
    assert_full(&connect(Config::new(directory.join("new/locks.db"))).await.unwrap_err());
    assert_full(&connect(Config::new(&file).namespace("other")).await.unwrap_err());

    // There is space again: the same store continues, and a new one can be opened.
    fs::remove_file(filler).unwrap();
    let ClaimOutcome::Granted(last) = store.backend.claim(&refused).await.unwrap() else {
        panic!("it is free")
    };
    assert!(last.token > first.token);
    store.backend.release(&waiting).await.unwrap();
    for request in granted.iter().chain([&held, &refused]) {
        store.backend.release(request).await.unwrap();
        assert_eq!(holders(&store, &request.name).await, 0);
    }
    let other = connect(Config::new(&file).namespace("other")).await.unwrap();
    assert!(matches!(other.backend.claim(&held).await.unwrap(), ClaimOutcome::Granted(_)));
    let mut raw = SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(&file)).await.unwrap();
    let sound: String = sqlx::query_scalar("PRAGMA integrity_check").fetch_one(&mut raw).await.unwrap();
    assert_eq!(sound, "ok");
}
