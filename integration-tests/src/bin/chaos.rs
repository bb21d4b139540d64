//! Runs processes on real servers under faults, checks their history, and records the results.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Parser, Subcommand};
use polylock_integration_tests::{
    chaos::{
        configuration::{self, CONFIGURATIONS, Configuration},
        long::{self, Next},
        observed::Found,
        page,
        peers::{self, PEERS, Peer},
        plan::{Density, Kind},
        planted::Bug,
        record,
        run::{CLIENTS, Outcome, Run},
        window,
    },
    clock::now,
};
use polylock_testkit::Missing;

/// The length of a run with all promises in the short record.
const SHORT: Duration = Duration::from_secs(20);

/// The length of a run that ends with its first violation.
const LIMIT: Duration = Duration::from_secs(60);

/// The bugs that the short record plants, with their stores.
const PLANTED: [(&str, &str); 6] = [
    ("postgres", "foreign-release"),
    ("postgres", "last-first"),
    ("mariadb", "reader-beside-writer"),
    ("redis", "stopped-clock"),
    ("redis", "silent-loss"),
    ("redis", "forgets"),
];

/// Runs real processes on real servers under faults that are drawn from a seed, and checks their history.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The store, with its servers and settings; `chaos list` shows all
    #[arg(long, required_unless_present = "peer", overrides_with = "store")]
    store: Option<String>,
    /// Run this library on its store, as integration-tests/peers/run.sh does, and this library beside it as polylock-STORE
    #[arg(long, conflicts_with = "store")]
    peer: Option<String>,
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
    #[arg(long, default_value_t = CLIENTS)]
    clients: usize,
    /// Most sections are short, on many locks, so there are many of them
    #[arg(long, conflicts_with = "peer")]
    dense: bool,
    /// Plant this bug; with --worker, that program has it
    #[arg(long)]
    planted: Option<String>,
    /// Draw only faults of this kind, such as "late delivery"; may be repeated
    #[arg(long)]
    fault: Vec<String>,
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
    /// Run all stores for a short time, without switch-overs
    Short {
        /// Append the results to this file
        #[arg(long)]
        record: Option<PathBuf>,
    },
    /// Plant each bug in each store with all promises
    Planted {
        /// Append the results to this file
        #[arg(long)]
        record: Option<PathBuf>,
    },
    /// Continue the long record: run the store that is farthest from its goal, again and again
    Long {
        /// Begin no run after this number of minutes
        #[arg(long, default_value_t = 60)]
        minutes: u64,
        /// Run only this store; may be repeated
        #[arg(long)]
        store: Vec<String>,
    },
    /// Write docs/safety.md from the records
    Page,
}

#[tokio::main]
async fn main() -> io::Result<ExitCode> {
    let Arguments { command, store, peer, options } = Arguments::parse();
    match command {
        None => {
            let chosen = match (&store, &peer) {
                (_, Some(name)) => peers::named(name).map(|peer| (&peer.store, Some(peer))),
                (name, None) => {
                    configuration::named(name.as_deref().unwrap_or_default()).map(|it| (it, None))
                }
            };
            let Some((configuration, peer)) = chosen else {
                let name = peer.or(store).unwrap_or_default();
                eprintln!("there is no store or peer {name:?}: see `chaos list`");
                return Ok(ExitCode::FAILURE);
            };
            rounds(configuration, peer, &options).await
        }
        Some(Command::List) => {
            for configuration in CONFIGURATIONS {
                let bugs: Vec<&str> = Bug::of(configuration).map(Bug::name).collect();
                println!("{}: {}", configuration.name, bugs.join(", "));
            }
            println!("peers: {}", PEERS.each_ref().map(|peer| peer.name).join(", "));
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Short { record }) => {
            let promised = all().filter(|it| it.is_promised()).map(|it| (it, None, SHORT));
            let others = all().filter(|it| !it.is_promised()).map(|it| (it, None, LIMIT));
            let planted = PLANTED.iter().filter_map(|(store, bug)| {
                let configuration = configuration::named(store)?;
                Some((configuration, Some(Bug::of(configuration).find(|it| it.name() == *bug)?), LIMIT))
            });
            series(promised.chain(others).chain(planted), record.as_deref()).await
        }
        Some(Command::Planted { record }) => {
            let bugs = |it: &'static Configuration| Bug::of(it).map(move |bug| (it, Some(bug), LIMIT));
            series(all().filter(|it| it.is_promised()).flat_map(bugs), record.as_deref()).await
        }
        Some(Command::Long { minutes, store }) => {
            long(Duration::from_secs(60 * minutes), |it| {
                store.is_empty() || store.iter().any(|name| name == it.name)
            })
            .await
        }
        Some(Command::Page) => {
            fs::write(page::path(), page::current()?)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Runs a store with successive seeds until one fails.
async fn rounds(
    configuration: &'static Configuration,
    peer: Option<&'static Peer>,
    options: &Options,
) -> io::Result<ExitCode> {
    let planted = match &options.planted {
        None => None,
        Some(name) => {
            let bugs = Bug::of(configuration).filter(|_| options.worker.is_none());
            let in_code = Bug::in_code_of(configuration).filter(|_| options.worker.is_some());
            let Some(bug) = bugs.chain(in_code).find(|bug| bug.name() == name) else {
                eprintln!("there is no bug {name:?} for {}: see `chaos list`", configuration.name);
                return Ok(ExitCode::FAILURE);
            };
            Some(bug)
        }
    };
    let first = options.seed.unwrap_or_else(random_seed);
    let worker = match &options.worker {
        Some(worker) => worker.clone(),
        None => peer.and_then(Peer::program).map_or_else(worker, Ok)?,
    };
    let is_chosen =
        |kind: &Kind| options.fault.is_empty() || options.fault.iter().any(|name| name == kind.name());
    let kinds: Vec<Kind> = configuration.faults.iter().copied().filter(is_chosen).collect();
    for seed in first..first + options.rounds {
        let length = Duration::from_secs(options.seconds);
        let (worker, kinds) = (worker.clone(), kinds.clone());
        let clients = options.clients;
        let density = match peer {
            // The other programs are all alike.
            Some(_) => Density::Sparse,
            None if options.dense => Density::Dense,
            None => Density::Mixed,
        };
        let run = Run { configuration, seed, length, kinds, clients, density, peer, planted, worker };
        if !one(&run, options.record.as_deref()).await? {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the configurations that run the program `worker`, and have many faults in a short run.
fn all() -> impl Iterator<Item = &'static Configuration> {
    CONFIGURATIONS
        .iter()
        .filter(|configuration| configuration.silence.is_none() && configuration.every.is_none())
}

/// Runs each configuration with its bug for at most this time.
async fn series(
    runs: impl Iterator<Item = (&'static Configuration, Option<Bug>, Duration)>,
    record: Option<&Path>,
) -> io::Result<ExitCode> {
    let mut all_succeed = true;
    for (configuration, planted, length) in runs {
        let run = Run { planted, ..Run::new(configuration, random_seed(), length, worker()?) };
        all_succeed &= one(&run, record).await?;
    }
    Ok(if all_succeed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Continues the long record for this time, until the goals are met, or until a promise is broken.
async fn long(time: Duration, is_chosen: impl Fn(&Configuration) -> bool) -> io::Result<ExitCode> {
    let began = now();
    while now().since(began) < time {
        let records = record::read_all(&page::records())?;
        let Some(Next { configuration, density, share }) = long::next(&records, &is_chosen) else {
            println!("all goals are met");
            return Ok(ExitCode::SUCCESS);
        };
        println!("{}: {:.0} % of its goal", configuration.name, 100.0 * share);
        let run = Run { density, ..Run::new(configuration, random_seed(), LIMIT, worker()?) };
        let is_expected = one(&run, Some(&page::records().join("long.jsonl"))).await?;
        // A run without a promise may be lucky.
        if configuration.is_promised() && !is_expected {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn random_seed() -> u64 {
    fastrand::u64(..1 << 32)
}

/// Returns the program beside this one.
fn worker() -> io::Result<PathBuf> {
    std::env::current_exe().map(|program| program.with_file_name("worker"))
}

/// Runs it once. Returns true if it has the expected outcome.
async fn one(run: &Run, record: Option<&Path>) -> io::Result<bool> {
    let (name, seed) = (run.peer.map_or(run.configuration.name, |peer| peer.name), run.seed);
    println!("{name}: seed {seed}, {:?}", run.length);
    let outcome = run.run().await.map_err(|Missing(why)| io::Error::other(why))?;
    println!("{}", outcome.record);
    if run.configuration.outlasts {
        let waits = outcome.observed.sections.iter().map(|it| it.acquired.saturating_sub(it.invoked));
        println!("{name}: the longest wait took {:.1?}", Duration::from_nanos(waits.max().unwrap_or(0)));
    }
    if let Some(path) = record {
        record::append(path, &outcome.record)?;
    }
    let is_expected = if run.is_foreign() {
        // It is measured.
        true
    } else if run.planted.is_some() {
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
