//! A number in a file, which many add to: read, pause, write.

use std::{fs, path::Path, time::Duration};

use polylock::{Locks, Mode};
use polylock_integration_tests::{
    clock,
    history::{Flow, read_all},
    on_stores,
    stores::spot,
};
use polylock_testkit::history::{self, Recorder, Rules, Section};

use crate::{at_once, worker};

const PROCESSES: usize = 8;
const TASKS: usize = 64;

/// The longest that anybody may wait: everybody before it, several times over.
const FOR_EVER: Duration = Duration::from_secs(20);

fn number(file: &Path) -> usize {
    fs::read_to_string(file).unwrap().parse().unwrap()
}

/// Holds what was written down to all promises, and prints how it flowed.
fn check(store: &str, sections: &[Section], expected: usize) -> Flow {
    assert_eq!(sections.len(), expected);
    assert_eq!(history::check(sections, Rules::default()), []);
    let mut by_time: Vec<&Section> = sections.iter().collect();
    by_time.sort_by_key(|section| section.acquired);
    assert!(
        by_time.windows(2).all(|pair| pair[0].token < pair[1].token),
        "tokens grow in the order of the holds"
    );
    let flow = Flow::of(sections);
    println!("{store}: {flow}");
    assert!(flow.wait.max() < u64::try_from(FOR_EVER.as_nanos()).unwrap(), "somebody starved: {flow}");
    flow
}

async fn by_processes(
    store: &str,
    (processes, times): (usize, usize),
    locked: &str,
) -> (usize, Vec<Section>) {
    let spot = spot(store).await;
    let (file, written) = (spot.file("number"), spot.file("history"));
    fs::write(&file, "0").unwrap();
    fs::create_dir(&written).unwrap();
    let arguments = [file.to_str().unwrap(), written.to_str().unwrap(), &times.to_string(), locked];
    let mut workers = at_once(processes, || worker("increment", spot.url(), "number", &arguments));
    for worker in &mut workers {
        let done = worker.line_within(Duration::from_secs(120));
        assert_eq!(done.as_deref(), Some("done"), "{worker:?} waits for ever");
        assert!(worker.ends().success());
    }
    (number(&file), read_all(&written))
}

on_stores! {
    processes_lose_no_increment
    sixty_four_tasks_lose_no_increment
}

async fn processes_lose_no_increment(store: &str) {
    // Where each turn is several requests over HTTP, and whoever has released is mostly the quickest to ask again, somebody
    // else would wait for too long.
    let (processes, times) = if store == "azure" { (4, 100) } else { (PROCESSES, 200) };
    let (sum, sections) = by_processes(store, (processes, times), "locked").await;
    assert_eq!(sum, processes * times);
    check(store, &sections, processes * times);
}

/// The planted twin: the same work without the lock must lose some, or it proves nothing. No store has a part in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_without_the_lock_lose_increments() {
    let (sum, _) = by_processes("sqlite_full", (PROCESSES, 100), "unlocked").await;
    // Mostly it is less; but a shorter number written over the beginning of a longer one makes it more.
    assert_ne!(sum, PROCESSES * 100, "nothing was lost without a lock: the work does not collide");
}

async fn sixty_four_tasks_lose_no_increment(store: &str) {
    const TIMES: usize = 10;
    let spot = spot(store).await;
    let file = spot.file("number");
    fs::write(&file, "0").unwrap();
    let locks = Locks::connect(spot.url()).await.unwrap();
    let recorder = Recorder::new();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (locks, recorder, file) = (locks.clone(), recorder.clone(), file.clone());
            tokio::spawn(async move {
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
        tokio::time::timeout(Duration::from_secs(120), task).await.expect("nobody waits for ever").unwrap();
    }
    assert_eq!(number(&file), TASKS * TIMES);
    let flow = check(store, &recorder.sections(), TASKS * TIMES);
    assert!(flow.fairness() >= 0.8, "in one process, first come is first served: {flow}");
}
