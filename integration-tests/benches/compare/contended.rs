//! Many who want one lock, in one process and in several.

use std::{fs, time::Duration};

use polylock::{Locks, Mode};
use polylock_integration_tests::{
    clock::{now, pause},
    history::{Flow, at, read_all},
    process::Process,
    targets::{self, Spot},
};
use polylock_testkit::history::{self, Recorder, Rules, Section};

use crate::{Flavour, uncontended::Floors};

const LASTS: Duration = Duration::from_secs(3);

/// Prints the table. What broke a promise is worth nothing, however quick: then it panics.
pub(crate) fn run(floors: &Floors) {
    println!("\n## One lock, many who want it, again and again for {LASTS:?} (nothing is done under it)\n");
    println!(
        "| store | contenders | acquisitions/s | hand-over p50 | p99 | / raw pair p50 | wait p99 | wait max | went to another | fairness min/max |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for target in ["memory", "sqlite_full", "sqlite_normal"] {
        for tasks in [2, 8, 64] {
            let sections = Flavour::MultiThread.run(in_process(target, tasks));
            row(target, &format!("{tasks} tasks, 1 process"), &sections, floors);
        }
    }
    for target in ["sqlite_full", "sqlite_normal"] {
        for (processes, tasks) in [(2, 1), (8, 1), (8, 8)] {
            let sections = Flavour::MultiThread.run(across_processes(target, processes, tasks));
            row(target, &format!("{processes} processes x {tasks}"), &sections, floors);
        }
    }
}

fn row(target: &str, contenders: &str, sections: &[Section], floors: &Floors) {
    assert_eq!(history::check(sections, Rules::default()), []);
    let flow = Flow::of(sections);
    let hand_over = at(&flow.hand_over, 0.5);
    let floor = floors
        .get(target)
        .map_or("-".to_owned(), |floor| format!("{:.2} x", hand_over.as_secs_f64() / floor.as_secs_f64()));
    println!(
        "| {target} | {contenders} | {:.0} | {hand_over:.1?} | {:.1?} | {floor} | {:.1?} | {:.1?} | {:.1} % | {:.2} |",
        flow.rate(),
        at(&flow.hand_over, 0.99),
        at(&flow.wait, 0.99),
        at(&flow.wait, 1.0),
        f64::from(u32::try_from(flow.to_another).unwrap()) * 100.0
            / f64::from(u32::try_from(flow.sections).unwrap()),
        flow.fairness(),
    );
}

async fn in_process(target: &'static str, tasks: usize) -> Vec<Section> {
    let spot = targets::make(target).await.unwrap();
    let locks = Locks::connect(spot.url()).await.unwrap();
    let recorder = Recorder::new();
    let until = now() + LASTS;
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let (locks, recorder) = (locks.clone(), recorder.clone());
            tokio::spawn(async move {
                while now() < until {
                    let attempt = recorder.invoke("bench", task.to_string(), Mode::Exclusive);
                    let guard = locks.lock("bench").acquire().await.unwrap();
                    attempt.acquired(&guard).releasing(&guard);
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    recorder.sections()
}

async fn across_processes(target: &'static str, processes: usize, tasks: usize) -> Vec<Section> {
    let spot: Spot = targets::make(target).await.unwrap();
    let written = spot.file("history");
    fs::create_dir(&written).unwrap();
    let (tasks, lasts) = (tasks.to_string(), LASTS.as_millis().to_string());
    let arguments = ["contend", spot.url(), "bench", written.to_str().unwrap(), &tasks, &lasts];
    let start = || Process::start(env!("CARGO_BIN_EXE_worker"), arguments);
    let mut workers: Vec<Process> = (0..processes).map(|_| start()).collect();
    workers.iter_mut().for_each(|worker| drop(worker.hears("ready")));
    workers.iter_mut().for_each(|worker| worker.tell("go"));
    pause(LASTS).await;
    for worker in &mut workers {
        worker.hears("done");
        assert!(worker.ends().success());
    }
    read_all(&written)
}
