//! Concurrent increments of a number in a file: read, pause, write.

use std::{fs, path::Path, sync::Arc, time::Duration};

use polylock::{Locks, Mode};
use polylock_bench::Summary;
use polylock_integration_tests::{clock, history::read_all, load::turn, on_stores, stores::namespace};
use polylock_testkit::history::{self, Recorder, Rules, Section};
use tokio::sync::Barrier;

use crate::{start_together, worker};

const PROCESSES: usize = 8;
const TASKS: usize = 64;

/// The limit for a wait: several times the turns of all other tasks.
const MAX_WAIT: Duration = Duration::from_secs(20);

fn number(file: &Path) -> usize {
    fs::read_to_string(file).unwrap().parse().unwrap()
}

/// Checks the recorded sections, and prints their throughput.
fn check(store: &str, sections: &[Section], expected: usize) -> Summary {
    assert_eq!(sections.len(), expected);
    assert_eq!(history::check(sections, Rules::default()), []);
    let mut by_time: Vec<&Section> = sections.iter().collect();
    by_time.sort_by_key(|section| section.acquired);
    assert!(
        by_time.windows(2).all(|pair| pair[0].token < pair[1].token),
        "the tokens do not grow in the order of the holds"
    );
    let summary = Summary::of(sections);
    println!("{store}: {summary}");
    assert!(summary.wait.max() < MAX_WAIT, "a task waited longer than {MAX_WAIT:?}: {summary}");
    summary
}

async fn increment_in_processes(
    store: &str,
    (processes, times): (usize, usize),
    locked: &str,
) -> (usize, Vec<Section>) {
    let _turn = turn().await;
    let namespace = namespace(store).await;
    let (file, written) = (namespace.file("number"), namespace.file("history"));
    fs::write(&file, "0").unwrap();
    fs::create_dir(&written).unwrap();
    let arguments = [file.to_str().unwrap(), written.to_str().unwrap(), &times.to_string(), locked];
    let mut workers =
        start_together(processes, || worker("increment", namespace.url(), "number", &arguments));
    for worker in &mut workers {
        let done = worker.next_line(Duration::from_secs(120));
        assert_eq!(done.as_deref(), Some("done"), "{worker:?} has not finished");
        assert!(worker.wait_for_exit().success());
    }
    (number(&file), read_all(&written))
}

on_stores! {
    processes_lose_no_increment
    sixty_four_tasks_lose_no_increment
}

async fn processes_lose_no_increment(store: &str) {
    // On Azure each turn is several HTTP requests, and the releaser usually claims again first, so more processes would exceed the
    // limit of a wait.
    let (processes, times) = if store == "azure" { (4, 100) } else { (PROCESSES, 200) };
    let (sum, sections) = increment_in_processes(store, (processes, times), "locked").await;
    assert_eq!(sum, processes * times);
    check(store, &sections, processes * times);
}

/// The counterexample: the same work without the lock must lose increments, or the test proves nothing. It does not depend on the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_without_the_lock_lose_increments() {
    let (sum, _) = increment_in_processes("sqlite_full", (PROCESSES, 100), "unlocked").await;
    // The sum is usually smaller; a shorter number written over the beginning of a longer one makes it larger.
    assert_ne!(sum, PROCESSES * 100, "no increment was lost without a lock: the work does not collide");
}

async fn sixty_four_tasks_lose_no_increment(store: &str) {
    const TIMES: usize = 10;
    let namespace = namespace(store).await;
    let file = namespace.file("number");
    fs::write(&file, "0").unwrap();
    let locks = Locks::connect(namespace.url()).await.unwrap();
    let recorder = Recorder::new();
    let start = Arc::new(Barrier::new(TASKS));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (locks, recorder, file, start) =
                (locks.clone(), recorder.clone(), file.clone(), start.clone());
            tokio::spawn(async move {
                // No task is a turn ahead because it was spawned earlier.
                start.wait().await;
                for _ in 0..TIMES {
                    let attempt = recorder.invoke("number", task.to_string(), Mode::Exclusive);
                    let guard = locks.lock("number").acquire().await.unwrap();
                    let hold = attempt.acquired(&guard);
                    let before = number(&file);
                    clock::pause(Duration::from_millis(1)).await;
                    fs::write(&file, (before + 1).to_string()).unwrap();
                    hold.releasing(&guard);
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(120), task).await.expect("a task has not finished").unwrap();
    }
    assert_eq!(number(&file), TASKS * TIMES);
    let summary = check(store, &recorder.sections(), TASKS * TIMES);
    assert!(summary.fairness() >= 0.8, "expected order of arrival in one process: {summary}");
}
