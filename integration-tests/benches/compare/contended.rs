//! Contention for one lock, in one process and in several.

use std::{process::Command, time::Duration};

use futures_util::future::{BoxFuture, FutureExt};
use polylock::Locks;
use polylock_bench::{Children, Summary, contended};
use polylock_testkit::history::Section;

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
    let flow = Summary::of_correct(&sections).unwrap();
    let hand_over = flow.hand_over.p50();
    let raw = before.zip(after).map(|(mut raw, after)| {
        raw.add(&after);
        raw.p50()
    });
    let ratio =
        |of: &dyn Fn(Duration) -> f64, trip: Option<Duration>| trip.map(|trip| Cell::ratio(of(trip))).into();
    let (store, durability) = setup.names();
    report.row(vec![
        Cell::text(store),
        Cell::text(durability),
        Cell::text(contenders),
        Cell::number(flow.rate(), 0),
        ratio(&|raw| flow.rate() * raw.as_secs_f64(), raw),
        Cell::time(hand_over),
        Cell::time(flow.hand_over.p99()),
        ratio(&|trip| hand_over.as_secs_f64() / trip.as_secs_f64(), trip.or(raw)),
        Cell::time(flow.wait.p99()),
        Cell::time(flow.wait.max()),
        Cell::number(flow.share_to_another() * 100.0, 1),
        Cell::number(flow.fairness(), 2),
        Cell::number(flow.jain(), 3),
    ]);
}

/// Measures with one store for all tasks, or with a store for `each`, with its own connection or session.
async fn in_process(setup: Setup, tasks: usize, each: bool) -> Vec<Section> {
    let (_namespace, url) = setup.open().await;
    let mut stores = Vec::new();
    for _ in 0..if each { tasks } else { 1 } {
        stores.push((*Locks::connect(&url).await.unwrap()).clone());
    }
    contended::in_process(&stores, tasks, DURATION).await.unwrap()
}

async fn across_processes(setup: Setup, processes: usize, tasks: usize) -> Vec<Section> {
    let (_namespace, url) = setup.open().await;
    let children = Children::new(move || {
        let mut worker = Command::new(env!("CARGO_BIN_EXE_worker"));
        worker.args(["bench", &url, "bench"]);
        Ok(worker)
    });
    contended::across_processes(&children, "", (processes, tasks), DURATION).await.unwrap()
}
