//! Delivers messages of four processes late, repeatedly and out of order, on real servers, and checks their history.

use std::{io, process::ExitCode, time::Duration};

use clap::Parser;
use polylock_integration_tests::{
    chaos::record::append,
    late::{
        planted::Plant,
        record::record,
        run::{Outcome, Run},
        site::{STORES, Servers},
    },
};
use polylock_testkit::Missing;

/// Delivers messages late, repeatedly and out of order, and checks that nothing that was confirmed changes.
#[derive(Debug, Parser)]
struct Arguments {
    /// The store; may be repeated. All of them by default
    #[arg(long)]
    store: Vec<String>,
    /// The number of schedules on each store
    #[arg(long, default_value_t = 1000)]
    schedules: u32,
    /// The seed of the schedules; a random one if it is not set
    #[arg(long)]
    seed: Option<u64>,
    /// The number of the first schedule
    #[arg(long, default_value_t = 0)]
    first: u32,
    /// The number of schedules at a time
    #[arg(long, default_value_t = 48)]
    lanes: usize,
    /// Begin no schedule after this number of minutes
    #[arg(long, default_value_t = 600)]
    minutes: u64,
    /// Let no schedule take much longer than ten seconds, like those of the test `late`
    #[arg(long)]
    short: bool,
    /// Plant this bug
    #[arg(long)]
    planted: Option<String>,
    /// Run this program instead of the `worker` beside this one
    #[arg(long)]
    worker: Option<std::path::PathBuf>,
    /// Append the results to this file
    #[arg(long)]
    record: Option<std::path::PathBuf>,
    /// Print the history of each schedule with a violation, or of the only schedule
    #[arg(long)]
    verbose: bool,
}

#[tokio::main]
async fn main() -> io::Result<ExitCode> {
    let arguments = Arguments::parse();
    let worker = match arguments.worker.clone() {
        Some(worker) => worker,
        None => std::env::current_exe()?.with_file_name("worker"),
    };
    let run = Run {
        worker,
        seed: arguments.seed.unwrap_or_else(|| fastrand::u64(..1 << 32)),
        first: arguments.first,
        schedules: arguments.schedules,
        lanes: arguments.lanes,
        limit: Duration::from_secs(60 * arguments.minutes),
        script: None,
        is_short: arguments.short,
        planted: None,
    };
    let all = || STORES.map(str::to_owned).to_vec();
    let stores = if arguments.store.is_empty() { all() } else { arguments.store.clone() };
    let mut is_expected = true;
    for store in &stores {
        println!("{store}: seed {}", run.seed);
        let servers = Servers::start(store).map_err(|Missing(why)| io::Error::other(why))?;
        let planted = match &arguments.planted {
            None => None,
            Some(name) => {
                let scheme = servers.namespace.split_once(':').map_or("", |(scheme, _)| scheme);
                let plant = Plant::named(name, scheme);
                Some(plant.ok_or_else(|| io::Error::other(format!("there is no bug {name:?}")))?)
            }
        };
        let run = Run { planted, ..run.clone() };
        let outcome = run.on(servers).await?;
        show(&outcome, arguments.verbose);
        println!("{store}: {outcome}");
        if let Some(file) = &arguments.record {
            append(file, &record(store, &run, &outcome))?;
        }
        is_expected &= outcome.found.is_empty() != planted.is_some();
    }
    Ok(if is_expected { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(outcome: &Outcome, is_verbose: bool) {
    for (outcome, count) in &outcome.outcomes {
        println!("  {outcome}: {count}");
    }
    for (number, violation) in outcome.found.iter().take(50) {
        println!("  schedule {number}: {violation}");
    }
    for (number, violation) in &outcome.examples {
        println!("  excused, schedule {number}: {violation}");
    }
    for (script, history) in outcome.histories.iter().filter(|_| is_verbose) {
        println!("{script:#?}");
        for event in &history.events {
            let took = Duration::from_nanos(event.reply.returned - event.reply.invoked);
            println!(
                "{} {:?} {:?} after {took:.1?}: {:?}",
                event.reply.invoked, event.role, event.action, event.reply.outcome
            );
        }
        println!("delivered {:?}, copies {:?}, logs {:?}", history.deliveries, history.copies, history.logs);
    }
}
