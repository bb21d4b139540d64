//! Searches for failing runs of the simulation, and replays a run from its seed.

use std::{io, process::ExitCode, time::Duration};

use clap::Parser;
use polylock_core::{Clock, SystemClock};
use polylock_integration_tests::simulation::{
    plan::{Plan, Planted, StoreKind},
    shrink::shrink,
    timeline,
    world::{self, Outcome},
};

/// The greatest number of runs in which a failing plan is made smaller.
const SHRINK_RUNS: u32 = 500;

/// The time before a violation that is shown.
const WINDOW: Duration = Duration::from_secs(4);

/// Runs the real core in virtual time, over a network with faults: against the model of a store, or with the real client of a store.
#[derive(Debug, Parser)]
struct Arguments {
    /// Replay the run of this seed with its timeline; with --runs or --seconds, the first seed of the search
    #[arg(long)]
    seed: Option<u64>,
    /// Search in this number of runs
    #[arg(long)]
    runs: Option<u64>,
    /// Search for this time
    #[arg(long)]
    seconds: Option<u64>,
    /// The store
    #[arg(long, default_value = "queue", conflicts_with = "planted")]
    store: StoreKind,
    /// Plant this bug, in its store
    #[arg(long)]
    planted: Option<Planted>,
}

fn main() -> io::Result<ExitCode> {
    let arguments = Arguments::parse();
    let store = arguments.planted.map_or(arguments.store, Planted::store);
    let draw = |seed| Plan::draw(store, seed, arguments.planted);
    match (arguments.seed, arguments.runs, arguments.seconds) {
        (Some(seed), None, None) => replay(&draw(seed)),
        (seed, runs, seconds) => {
            let seconds = seconds.or(runs.is_none().then_some(10)).map(Duration::from_secs);
            let first = seed.unwrap_or_else(|| fastrand::u64(..u64::MAX / 2));
            search(first, runs.unwrap_or(u64::MAX), seconds, draw)
        }
    }
}

/// Runs the plan and prints everything that happens.
fn replay(plan: &Plan) -> io::Result<ExitCode> {
    let outcome = world::run(plan, true)?;
    print_plan(plan);
    outcome.timeline.iter().for_each(|line| println!("{line}"));
    println!("{} sections, timeline {:016x}", outcome.sections, timeline::hash(&outcome.timeline));
    Ok(verdict(&outcome))
}

/// Runs the plans of successive seeds until one of them fails.
fn search(
    first: u64,
    runs: u64,
    limit: Option<Duration>,
    draw: impl Fn(u64) -> Plan,
) -> io::Result<ExitCode> {
    let (began, mut sections, mut done) = (SystemClock.now(), 0, 0);
    while done < runs && limit.is_none_or(|limit| SystemClock.now().since(began) < limit) {
        let plan = draw(first + done);
        let outcome = world::run(&plan, false)?;
        (sections, done) = (sections + outcome.sections, done + 1);
        if let Some(violation) = outcome.violations.first() {
            println!("seed {}, run {done}: {violation}", plan.seed);
            let smallest = shrink(plan, violation.kind, SHRINK_RUNS)?;
            return show_window(&smallest);
        }
    }
    let took = SystemClock.now().since(began);
    let rate = sections as f64 / took.as_secs_f64();
    println!(
        "{done} runs from seed {first}, {sections} sections in {took:.1?}, {rate:.0} sections/s, no violation"
    );
    Ok(ExitCode::SUCCESS)
}

/// Prints the part of a failing run that leads to its first violation.
fn show_window(plan: &Plan) -> io::Result<ExitCode> {
    let outcome = world::run(plan, true)?;
    print_plan(plan);
    let at = outcome.violations.first().map_or(u64::MAX, |violation| violation.at);
    let from = at.saturating_sub(WINDOW.as_secs() * 1_000_000_000);
    for line in outcome.timeline.iter().filter(|line| line.at >= from && line.at <= at + 100_000_000) {
        println!("{line}");
    }
    Ok(verdict(&outcome))
}

fn print_plan(plan: &Plan) {
    println!(
        "{:?}, seed {}, {} servers, {} clients, noise: {}",
        plan.store,
        plan.seed,
        plan.servers,
        plan.clients.len(),
        plan.is_noisy
    );
    plan.faults.iter().for_each(|fault| println!("  {fault}"));
}

fn verdict(outcome: &Outcome) -> ExitCode {
    outcome.violations.iter().for_each(|violation| println!("{violation}"));
    if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
