//! One file under several names, and names that can't be used.
#![cfg(target_os = "linux")]

use std::{fs, path::Path, process::Command, time::Duration};

use polylock_core::{Error, Mode, Request, Result, Store};
use polylock_sql::sqlite::{Config, connect};
use tokio::time::timeout;

use crate::common::{TestFile, acquire, held, queued, request_with_ttl};

/// Longer than a test takes: no lease expires.
const TTL: Duration = Duration::from_secs(600);

async fn open(path: &Path) -> Result<Store> {
    connect(Config::new(path)).await
}

fn assert_refused(outcome: Result<Store>, words: &str) {
    let Err(Error::Config(error)) = outcome else { panic!("{outcome:?}") };
    assert!(error.problem.contains(words), "{error}");
}

#[tokio::test]
async fn a_file_with_a_hard_link_is_refused() {
    let file = TestFile::new();
    drop(file.store().await);
    let link = file.path().with_file_name("link.db");
    fs::hard_link(file.path(), &link).unwrap();
    for path in [&link, &file.path()] {
        assert_refused(open(path).await, "a hard link");
    }
    fs::remove_file(link).unwrap();
    file.store().await;
}

/// A program of an earlier version creates the file under another name, which it deletes.
#[tokio::test]
async fn a_file_that_is_being_created_is_waited_for() {
    let file = TestFile::new();
    let draft = file.path().with_file_name("locks.db-new-0123");
    fs::write(&draft, "").unwrap();
    fs::hard_link(&draft, file.path()).unwrap();
    let opening = tokio::spawn(connect(file.config()));
    tokio::task::yield_now().await;
    fs::remove_file(&draft).unwrap();
    opening.await.unwrap().unwrap();
}

/// What `docker run -v ./locks.db:/app/locks.db` does. It needs the right to mount; without it the file is not mounted, and nothing to refuse.
#[test]
fn a_file_that_is_a_mount_is_refused() {
    const CHILD: &str = "POLYLOCK_TEST_MOUNTED";
    if let Ok(path) = std::env::var(CHILD) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return assert_refused(runtime.block_on(open(Path::new(&path))), "itself is a mount");
    }
    let directory = tempfile::TempDir::new().unwrap();
    let (file, mount) = (directory.path().join("locks.db"), directory.path().join("mount/locks.db"));
    fs::create_dir(mount.parent().unwrap()).unwrap();
    for path in [&file, &mount] {
        fs::write(path, "").unwrap();
    }
    // The name of this test ends up in the child, which opens the file where it is mounted.
    let script = "mount --bind \"$1\" \"$2\" && exec \"$3\" --exact names::a_file_that_is_a_mount_is_refused --nocapture";
    let mut child = Command::new("unshare");
    child.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]).args([&file, &mount]);
    let output = child.arg(std::env::current_exe().unwrap()).env(CHILD, &mount).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let cause = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && ["unshare", "mount:"].iter().any(|word| cause.starts_with(word)) {
        println!("not tried: {cause}");
        return;
    }
    assert!(output.status.success() && text.contains("1 passed"), "{text}{cause}");
}

/// The file `-holders` is beside the file and not beside the link, so the end of a process is found by all.
#[tokio::test]
async fn a_dead_holder_behind_a_symbolic_link_blocks_nobody() {
    let file = TestFile::new();
    let link = file.path().with_file_name("link.db");
    std::os::unix::fs::symlink(file.path(), &link).unwrap();
    for (first, second) in [(file.path(), link.clone()), (link, file.path())] {
        let (dead, alive) = (open(&first).await.unwrap(), open(&second).await.unwrap());
        let exclusive = || -> Request { request_with_ttl("n", Mode::Exclusive, TTL) };
        held(&dead, &exclusive()).await;
        let next = exclusive();
        queued(&alive, &next).await;
        drop(dead);
        timeout(Duration::from_secs(5), acquire(&alive, &next)).await.unwrap();
        alive.backend.release(&next).await.unwrap();
    }
    let beside = fs::read_dir(file.path().parent().unwrap()).unwrap().flatten();
    let holders = beside.filter(|entry| entry.file_name().to_string_lossy().ends_with("-holders"));
    assert_eq!(holders.count(), 1);
}

#[tokio::test]
async fn a_path_that_is_too_long_for_sqlite_is_refused_with_its_length() {
    let file = TestFile::new();
    let directory = file.path().parent().unwrap().to_owned();
    let longest = directory.join("n".repeat(247));
    open(&longest).await.unwrap();
    let mut deep = directory;
    while deep.as_os_str().len() < 300 {
        deep.push("d".repeat(100));
    }
    let rest = 504 - deep.as_os_str().len() - 1;
    open(&deep.join("p".repeat(rest))).await.unwrap();
    for path in [longest.with_file_name("n".repeat(248)), deep.join("p".repeat(rest + 1))] {
        let Err(Error::Config(error)) = open(&path).await else { panic!("it is opened: {path:?}") };
        assert!(error.problem.contains("has") && error.problem.contains("504"), "{error}");
    }
}
