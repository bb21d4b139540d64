//! The main function of a child process, and its work.

use std::time::Duration;

use polylock::{Moment, core::Locks};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::{
    Error, Result,
    child::{ERROR, HELD, Job, READY},
    contended::compete,
    process::{input_lines, print_line},
    times::now,
};

/// Runs this process as a child of the benchmark: reads its job, and does it. `open` opens a namespace of the
/// store, with another timeout of its session if one is given: see [`Subject::open`](crate::Subject::open).
///
/// # Errors
/// The error, which was also written to the parent.
///
/// # Cancel safety
/// Only for a process that ends then.
pub async fn run_child<F>(open: impl FnOnce(String, Option<Duration>) -> F) -> Result<()>
where
    F: Future<Output = Result<Locks>>,
{
    let done = run_job(open).await;
    if let Err(error) = &done {
        print_line(format_args!("{ERROR}{}", error.chain().replace('\n', " ")));
    }
    done
}

async fn run_job<F>(open: impl FnOnce(String, Option<Duration>) -> F) -> Result<()>
where
    F: Future<Output = Result<Locks>>,
{
    let mut input = input_lines();
    let job = input.recv().await.unwrap_or_default();
    let job: Job = serde_json::from_str(&job).map_err(|error| Error::Child(format!("its job: {error}")))?;
    let locks = open(job.namespace().to_owned(), job.session()).await?;
    print_line(READY);
    match job {
        Job::Wait { name, .. } => wait(&locks, &name, input).await,
        Job::Contend { name, client, tasks, .. } => contend(&locks, &name, &client, tasks, input).await,
        Job::Hold { name, ttl_ms, .. } => hold(&locks, &name, Duration::from_millis(ttl_ms), input).await,
    }
}

async fn wait(locks: &Locks, name: &str, mut input: UnboundedReceiver<String>) -> Result<()> {
    while input.recv().await.is_some() {
        let guard = locks.lock(name).acquire().await?;
        print_line(now().as_nanos());
        guard.release().await?;
    }
    Ok(())
}

async fn contend(
    locks: &Locks,
    name: &str,
    client: &str,
    tasks: usize,
    mut input: UnboundedReceiver<String>,
) -> Result<()> {
    let Some(until) = input.recv().await.and_then(|line| line.parse().ok()) else { return Ok(()) };
    let stores = std::slice::from_ref(locks);
    for section in compete(stores, name, client, tasks, Moment::from_nanos(until)).await? {
        print_line(section);
    }
    print_line("");
    Ok(())
}

async fn hold(locks: &Locks, name: &str, ttl: Duration, mut input: UnboundedReceiver<String>) -> Result<()> {
    let guard = locks.lock(name).ttl(ttl).acquire().await?;
    print_line(HELD);
    // It is killed now; if the parent is gone, the input ends.
    while input.recv().await.is_some() {}
    drop(guard);
    Ok(())
}
