//! Searches for failing runs of the simulation, and replays a run from its seed.

use std::{io, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, ValueEnum};
use polylock_integration_tests::{
    chaos::record,
    simulation::{
        plan::{Plan, Planted, StoreKind, Style},
        search::{LONGEST_SEARCH, Limits, Search, first_seed},
        shrink::shrink,
        timeline,
        world::{self, Outcome},
    },
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
    /// Replay a run of this style; by default the runs of even seeds are busy, and the others calm
    #[arg(long, requires = "seed", conflicts_with_all = ["runs", "seconds"])]
    style: Option<Style>,
    /// Plant this bug, in its store
    #[arg(long)]
    planted: Option<Planted>,
    /// Search for each planted bug this number of times, for three minutes each at most
    #[arg(long, value_name = "TIMES", conflicts_with_all = ["seed", "runs", "seconds", "store", "planted"])]
    all_planted: Option<u32>,
    /// Append the results to this file of docs/safety.md
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

fn main() -> io::Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(times) = arguments.all_planted {
        return search_all_planted(times, &arguments);
    }
    let (store, planted) = (arguments.planted.map_or(arguments.store, Planted::store), arguments.planted);
    match (arguments.seed, arguments.runs, arguments.seconds) {
        (Some(seed), None, None) => {
            let style = arguments.style.unwrap_or(Style::of(seed));
            replay(&Plan::draw_in(style, store, seed, planted))
        }
        (seed, runs, seconds) => {
            let seconds = seconds.or(runs.is_none().then_some(10)).map(Duration::from_secs);
            let limits =
                Limits { runs: runs.unwrap_or(u64::MAX), ..Limits::time(seconds.unwrap_or(Duration::MAX)) };
            let limits = limits.on_all_cores();
            let search = Search::run(store, planted, seed.unwrap_or_else(first_seed), limits)?;
            println!("{search}");
            append(&arguments, &search)?;
            let Some((plan, violation)) = search.found else { return Ok(ExitCode::SUCCESS) };
            show_window(&shrink(plan, violation.kind, SHRINK_RUNS)?)
        }
    }
}

fn append(arguments: &Arguments, search: &Search) -> io::Result<()> {
    arguments.record.as_ref().map_or(Ok(()), |file| record::append(file, &search.record()))
}

/// Searches for each planted bug from random seeds. Fails if one of them is not found once.
fn search_all_planted(times: u32, arguments: &Arguments) -> io::Result<ExitCode> {
    let mut missed = 0;
    for planted in Planted::value_variants() {
        for _ in 0..times {
            let limits = Limits::time(LONGEST_SEARCH).on_all_cores();
            let search = Search::run(planted.store(), Some(*planted), first_seed(), limits)?;
            println!("{planted:?}: {search}");
            append(arguments, &search)?;
            missed += u32::from(search.found.is_none());
        }
    }
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the plan and prints everything that happens.
fn replay(plan: &Plan) -> io::Result<ExitCode> {
    let outcome = world::run(plan, true)?;
    print_plan(plan);
    outcome.timeline.iter().for_each(|line| println!("{line}"));
    println!("{} sections, timeline {:016x}", outcome.sections, timeline::hash(&outcome.timeline));
    Ok(verdict(&outcome))
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
        "{:?}, seed {}, {:?}, {} servers, {} clients, noise: {}",
        plan.store,
        plan.seed,
        plan.style,
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
