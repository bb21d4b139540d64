//! Measures whether the command of a stopped `polylock run` is dead before the next holder's command starts, on a machine that
//! runs many processes.
//!
//! ```text
//! takeover POLYLOCK PROCESSES TTL_MS STOPS PARALLEL
//! cargo run --release -p polylock-integration-tests --bin takeover -- target/release/polylock 3000 1000 100 1
//! ```
//!
//! It starts so many idle processes beside, stops so many wrappers, so many of them at a time and each right after it has acquired
//! its lock, and prints the gaps between the last sign of life of the stopped one's command and the start of the next one. It fails
//! if a gap is negative. The tests use its other two modes, `beat FILE` and `start FILE`, as the commands.

use std::{env, error::Error, path::Path, process::ExitCode, time::Duration};

use polylock_integration_tests::{
    clock::{now, pause},
    takeover::{Fault, IdleProcesses, Programs, Trial, beat, start},
};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["beat", file] => beat(Path::new(file))?,
        ["start", file] => start(Path::new(file))?,
        [polylock, processes, ttl, stops, parallel] => {
            let polylock = Path::new(polylock).canonicalize()?;
            let programs = Programs { polylock, takeover: env::current_exe()? };
            let ttl = Duration::from_millis(ttl.parse()?);
            return measure(&programs, processes.parse()?, ttl, stops.parse()?, parallel.parse()?);
        }
        _ => return Err("takeover POLYLOCK PROCESSES TTL_MS STOPS PARALLEL".into()),
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(
    programs: &Programs,
    processes: usize,
    ttl: Duration,
    stops: usize,
    parallel: usize,
) -> Result<ExitCode, Box<dyn Error>> {
    let idle = IdleProcesses::start(processes)?;
    let began = now();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut gaps: Vec<f64> = runtime.block_on(async {
        let lanes = (0..parallel).map(|lane| {
            let programs = programs.clone();
            tokio::spawn(async move {
                // The lanes are spread over a lease, so that they do not all end at once.
                let parts = u32::try_from(parallel).unwrap_or(1);
                pause(ttl / parts * u32::try_from(lane).unwrap_or(0)).await;
                let mut gaps = Vec::new();
                for _ in (lane..stops).step_by(parallel) {
                    let trial =
                        Trial::start(&programs, ttl, Fault::Stop, "trap '' TERM; exec \"$T\" beat life")
                            .await;
                    gaps.push(trial.finish().await.gap);
                }
                gaps
            })
        });
        let mut all = Vec::new();
        for lane in lanes.collect::<Vec<_>>() {
            all.extend(lane.await?);
        }
        Ok::<_, tokio::task::JoinError>(all)
    })?;
    drop(idle);
    gaps.sort_by(f64::total_cmp);
    let early = gaps.iter().filter(|gap| **gap <= 0.0).count();
    let at = |part: usize| gaps.get(part * gaps.len().saturating_sub(1) / 100).copied().unwrap_or(f64::NAN);
    println!(
        "{processes} idle processes, TTL {ttl:?}, {} stops ({parallel} at a time) in {:.0?}: gap min {:.1} ms, p1 {:.1}, median {:.1}, \
         max {:.1}; {early} times both worked at once",
        gaps.len(),
        now().since(began),
        at(0),
        at(1),
        at(50),
        at(100),
    );
    Ok(if early == 0 && gaps.len() == stops { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
