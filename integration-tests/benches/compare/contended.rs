//! Many who want one lock, in one process and in several.

use std::{fs, time::Duration};

use hdrhistogram::Histogram;
use polylock::{Locks, Mode};
use polylock_integration_tests::{
    clock::{now, pause},
    history::{Flow, at, read_all},
    process::Process,
};
use polylock_testkit::history::{self, Recorder, Rules, Section};

use crate::{Flavour, places::Place, uncontended};

const LASTS: Duration = Duration::from_secs(3);

/// Prints the table. What broke a promise is worth nothing, however quick: then it panics.
pub(crate) fn run(places: &[Place]) {
    println!(
        "\n## One lock, many who want it, again and again for {LASTS:?} (nothing is done under it)\n\n\
         Compared with raw pairs of one task alone, one after the other, just before and just after.\n"
    );
    println!(
        "| store | durability | contenders | acquisitions/s | x raw p50 | hand-over p50 | p99 | / raw pair p50 | wait p99 | wait max | went to another | fairness min/max | Jain |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for place in places {
        for tasks in [1, 2, 8, 64] {
            row(*place, &format!("{tasks} tasks, 1 process"), in_process(*place, tasks, false));
        }
        for tasks in [8, 64].into_iter().filter(|_| place.is_light()) {
            row(*place, &format!("{tasks} tasks, a store each"), in_process(*place, tasks, true));
        }
    }
    for place in places.iter().filter(|place| **place != Place::Memory) {
        for (processes, tasks) in [(2, 1), (8, 1), (8, 8)] {
            let sections = across_processes(*place, processes, tasks);
            row(*place, &format!("{processes} processes x {tasks}"), sections);
        }
    }
}

fn row(place: Place, contenders: &str, sections: impl Future<Output = Vec<Section>> + Send + 'static) {
    let floor = || Flavour::MultiThread.run(uncontended::floor(place));
    let (before, sections, after) = (floor(), Flavour::MultiThread.run(sections), floor());
    assert_eq!(history::check(&sections, Rules::default()), []);
    let flow = Flow::of(&sections);
    let hand_over = at(&flow.hand_over, 0.5);
    let raw = before.zip(after).map(|(mut raw, after)| {
        raw.add(after).unwrap();
        raw
    });
    let by = |ratio: &dyn Fn(&Histogram<u64>) -> f64| {
        raw.as_ref().map_or("-".to_owned(), |raw| format!("{:.2} x", ratio(raw)))
    };
    let rates = by(&|raw| flow.rate() * at(raw, 0.5).as_secs_f64());
    let floor = by(&|raw| hand_over.as_secs_f64() / at(raw, 0.5).as_secs_f64());
    let (store, durability) = place.names();
    println!(
        "| {store} | {durability} | {contenders} | {:.0} | {rates} | {hand_over:.1?} | {:.1?} | {floor} | {:.1?} | {:.1?} | {:.1} % | {:.2} | {:.3} |",
        flow.rate(),
        at(&flow.hand_over, 0.99),
        at(&flow.wait, 0.99),
        at(&flow.wait, 1.0),
        f64::from(u32::try_from(flow.to_another).unwrap()) * 100.0
            / f64::from(u32::try_from(flow.sections).unwrap()),
        flow.fairness(),
        flow.jain,
    );
}

/// With one store for all tasks, or a store `each`, with a connection or session of its own.
async fn in_process(place: Place, tasks: usize, each: bool) -> Vec<Section> {
    let (_spot, url) = place.open().await;
    let mut stores = Vec::new();
    for _ in 0..if each { tasks } else { 1 } {
        stores.push(Locks::connect(&url).await.unwrap());
    }
    let recorder = Recorder::new();
    let until = now() + LASTS;
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let (locks, recorder) = (stores[task % stores.len()].clone(), recorder.clone());
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

async fn across_processes(place: Place, processes: usize, tasks: usize) -> Vec<Section> {
    let (spot, url) = place.open().await;
    let written = spot.file("history");
    fs::create_dir(&written).unwrap();
    let (tasks, lasts) = (tasks.to_string(), LASTS.as_millis().to_string());
    let arguments = ["contend", &url, "bench", written.to_str().unwrap(), &tasks, &lasts];
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
