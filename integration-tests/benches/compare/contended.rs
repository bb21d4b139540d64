//! Contention for one lock, in one process and in several.

use std::{fs, time::Duration};

use futures_util::future::{BoxFuture, FutureExt};
use polylock::{Locks, Mode};
use polylock_integration_tests::{
    clock::{now, pause},
    history::{Summary, at, read_all},
    process::Process,
};
use polylock_testkit::history::{self, Recorder, Rules, Section};

use crate::{
    Flavour,
    report::{Cell, Report},
    setups::Setup,
    uncontended,
};

const DURATION: Duration = Duration::from_secs(3);

/// Prints the table; with `goals_only`, only the rows of the goals. It panics if a history is not correct.
pub(crate) fn run(setups: &[Setup], goals_only: bool, report: &mut Report) {
    let title = format!(
        "One lock, many who want it, again and again for {DURATION:?} (nothing is done under it)\n\n\
         Compared with raw pairs of one task alone, one after the other, just before and just after. A hand-over is compared with such a \
         pair, or with the round trip of a script in Redis (trip)."
    );
    let columns = &[
        "store",
        "durability",
        "contenders",
        "acquisitions/s",
        "x raw p50",
        "hand-over p50",
        "hand-over p99",
        "hand-over p50 / trip",
        "wait p99",
        "wait max",
        "to another %",
        "fairness min/max",
        "Jain",
    ];
    report.begin("one lock", &title, columns);
    let mut add = |setup: Setup, contenders: &str, sections| row(report, setup, contenders, sections);
    for setup in setups {
        for tasks in [1, 2, 8, 64].into_iter().filter(|tasks| !goals_only || *tasks == 64) {
            add(*setup, &format!("{tasks} tasks, 1 process"), in_process(*setup, tasks, false).boxed());
        }
        for tasks in [8, 64].into_iter().filter(|_| setup.is_light() && !goals_only) {
            add(*setup, &format!("{tasks} tasks, a store each"), in_process(*setup, tasks, true).boxed());
        }
    }
    for setup in setups.iter().filter(|setup| **setup != Setup::Memory) {
        for (processes, tasks) in
            [(2, 1), (8, 1), (8, 8)].into_iter().filter(|(_, tasks)| !goals_only || *tasks == 8)
        {
            let sections = across_processes(*setup, processes, tasks).boxed();
            add(*setup, &format!("{processes} processes x {tasks}"), sections);
        }
    }
}

fn row(report: &mut Report, setup: Setup, contenders: &str, sections: BoxFuture<'static, Vec<Section>>) {
    let floor = || Flavour::MultiThread.run(uncontended::floor(setup));
    let (before, sections, after) = (floor(), Flavour::MultiThread.run(sections), floor());
    let trip = Flavour::MultiThread.run(uncontended::trip(setup));
    assert_eq!(history::check(&sections, Rules::default()), []);
    let flow = Summary::of(&sections);
    let hand_over = at(&flow.hand_over, 0.5);
    let raw = before.zip(after).map(|(mut raw, after)| {
        raw.add(after).unwrap();
        at(&raw, 0.5)
    });
    let ratio =
        |of: &dyn Fn(Duration) -> f64, trip: Option<Duration>| trip.map(|trip| Cell::ratio(of(trip))).into();
    let (store, durability) = setup.names();
    let to_another = f64::from(u32::try_from(flow.to_another).unwrap()) * 100.0
        / f64::from(u32::try_from(flow.sections).unwrap());
    report.row(vec![
        Cell::text(store),
        Cell::text(durability),
        Cell::text(contenders),
        Cell::number(flow.rate(), 0),
        ratio(&|raw| flow.rate() * raw.as_secs_f64(), raw),
        Cell::time(hand_over),
        Cell::time(at(&flow.hand_over, 0.99)),
        ratio(&|trip| hand_over.as_secs_f64() / trip.as_secs_f64(), trip.or(raw)),
        Cell::time(at(&flow.wait, 0.99)),
        Cell::time(at(&flow.wait, 1.0)),
        Cell::number(to_another, 1),
        Cell::number(flow.fairness(), 2),
        Cell::number(flow.jain, 3),
    ]);
}

/// Measures with one store for all tasks, or with a store for `each`, with its own connection or session.
async fn in_process(setup: Setup, tasks: usize, each: bool) -> Vec<Section> {
    let (_spot, url) = setup.open().await;
    let mut stores = Vec::new();
    for _ in 0..if each { tasks } else { 1 } {
        stores.push(Locks::connect(&url).await.unwrap());
    }
    let recorder = Recorder::new();
    let until = now() + DURATION;
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

async fn across_processes(setup: Setup, processes: usize, tasks: usize) -> Vec<Section> {
    let (namespace, url) = setup.open().await;
    let written = namespace.file("history");
    fs::create_dir(&written).unwrap();
    let (tasks, lasts) = (tasks.to_string(), DURATION.as_millis().to_string());
    let arguments = ["contend", &url, "bench", written.to_str().unwrap(), &tasks, &lasts];
    let start = || Process::start(env!("CARGO_BIN_EXE_worker"), arguments);
    let mut workers: Vec<Process> = (0..processes).map(|_| start()).collect();
    workers.iter_mut().for_each(|worker| drop(worker.expect_line("ready")));
    workers.iter_mut().for_each(|worker| worker.send_line("go"));
    pause(DURATION).await;
    for worker in &mut workers {
        worker.expect_line("done");
        assert!(worker.wait_for_exit().success());
    }
    read_all(&written)
}
