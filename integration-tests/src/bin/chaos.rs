//! Runs processes on real servers under faults, checks their history, and records the results.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Parser, Subcommand};
use polylock_integration_tests::chaos::{
    check::Found,
    configuration::{self, CONFIGURATIONS, Configuration},
    page,
    planted::Bug,
    run::{Outcome, Run},
    window,
};
use polylock_testkit::Missing;

/// Runs real processes on real servers under faults that are drawn from a seed, and checks their history.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The store, with its servers and settings; `chaos list` shows all
    #[arg(long, required = true)]
    store: Option<String>,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, clap::Args)]
struct Options {
    /// The length of a run in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The seed of the schedule and of the clients; a random one if it is not set
    #[arg(long)]
    seed: Option<u64>,
    /// The number of runs, with successive seeds
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    /// The number of clients of each of the four processes
    #[arg(long, default_value_t = 6)]
    clients: usize,
    /// Plant this bug
    #[arg(long)]
    planted: Option<String>,
    /// Append the results to this file
    #[arg(long)]
    record: Option<PathBuf>,
    /// Run this program instead of the `worker` beside this one
    #[arg(long)]
    worker: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the stores, and the bugs that can be planted in each
    List,
    /// Run all stores for a short time
    Short {
        /// Append the results to this file
        #[arg(long)]
        record: Option<PathBuf>,
    },
    /// Write docs/safety.md from the records
    Page,
}

#[tokio::main]
async fn main() -> io::Result<ExitCode> {
    let Arguments { command, store, options } = Arguments::parse();
    match command {
        None => {
            let name = store.unwrap_or_default();
            let Some(configuration) = configuration::named(&name) else {
                eprintln!("there is no store {name:?}: see `chaos list`");
                return Ok(ExitCode::FAILURE);
            };
            rounds(configuration, &options).await
        }
        Some(Command::List) => {
            for configuration in CONFIGURATIONS {
                let bugs: Vec<&str> = Bug::of(configuration.scheme()).map(Bug::name).collect();
                println!("{}: {}", configuration.name, bugs.join(", "));
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Short { record }) => short(record.as_deref()).await,
        Some(Command::Page) => {
            fs::write(page::path(), page::current()?)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Runs a store with successive seeds until one fails.
async fn rounds(configuration: &'static Configuration, options: &Options) -> io::Result<ExitCode> {
    let planted = match &options.planted {
        None => None,
        Some(name) => {
            let Some(bug) = Bug::of(configuration.scheme()).find(|bug| bug.name() == name) else {
                eprintln!("there is no bug {name:?} for {}: see `chaos list`", configuration.name);
                return Ok(ExitCode::FAILURE);
            };
            Some(bug)
        }
    };
    let first = options.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let worker = match &options.worker {
        Some(worker) => worker.clone(),
        None => std::env::current_exe()?.with_file_name("worker"),
    };
    for seed in first..first + options.rounds {
        let length = Duration::from_secs(options.seconds);
        let run =
            Run { configuration, seed, length, clients: options.clients, planted, worker: worker.clone() };
        if !one(&run, options.record.as_deref()).await? {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs all configurations for a short time, and plants some bugs.
async fn short(record: Option<&Path>) -> io::Result<ExitCode> {
    let worker = std::env::current_exe()?.with_file_name("worker");
    let mut all_succeed = true;
    for configuration in CONFIGURATIONS {
        let length = Duration::from_secs(if configuration.is_promised() { 25 } else { 60 });
        let seed = fastrand::u64(..1 << 32);
        let run = Run { configuration, seed, length, clients: 6, planted: None, worker: worker.clone() };
        all_succeed &= one(&run, record).await?;
    }
    Ok(if all_succeed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs it once. Returns true if it has the expected outcome.
async fn one(run: &Run, record: Option<&Path>) -> io::Result<bool> {
    let (name, seed) = (run.configuration.name, run.seed);
    println!("{name}: seed {seed}, {:?}", run.length);
    let outcome = run.run().await.map_err(|Missing(why)| io::Error::other(why))?;
    println!("{}", outcome.record);
    if let Some(path) = record {
        writeln!(OpenOptions::new().create(true).append(true).open(path)?, "{}", outcome.record)?;
    }
    let is_expected = if run.planted.is_some() {
        !outcome.broken.is_empty()
    } else {
        outcome.broken.is_empty() && run.configuration.is_promised() == outcome.excused.is_empty()
    };
    if !outcome.broken.is_empty() {
        show(run, &outcome);
    } else if !is_expected {
        println!("{name}: the run has found nothing, and was expected to fail");
    }
    Ok(is_expected)
}

fn show(run: &Run, outcome: &Outcome) {
    // The schedule of a bug that was planted is of no interest.
    if run.planted.is_none() {
        println!("the schedule of seed {}:", run.seed);
        outcome.plan.iter().for_each(|fault| println!("  {fault}"));
    }
    for Found { violation, .. } in outcome.broken.iter().take(5) {
        println!("{}: {violation}", violation.kind);
    }
    if let Some((found, window)) = window::shortest(&outcome.observed, &outcome.broken) {
        println!("the shortest window that shows it: {}: {}", found.violation.kind, found.violation);
        print!("{window}");
    }
}
