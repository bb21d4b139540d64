//! Job workers: several workers share a list of jobs, and each job is done once.
//!
//! ```text
//! cargo run -p polylock --example job_worker                      # workers in this process
//! cargo run -p polylock --example job_worker --features postgres postgres://locks@db/app
//! ```
//!
//! A worker takes the lock of a job without waiting, and skips the job if another worker has the lock. The result is written with the
//! fencing token of the lock, and the list refuses a token that is smaller than the one of the last write: a worker that was suspended
//! and lost its lock cannot overwrite the result of its successor.

#[path = "shared/metrics.rs"]
mod metrics;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use polylock::{FencingToken, Locks};

const WORKERS: usize = 3;
const JOBS: u32 = 12;

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// The state of a job. In an application this is a row of a table.
#[derive(Debug, Default, Clone, Copy)]
struct Job {
    is_done: bool,
    /// The fencing token of the last write; 0 before the first one.
    token: u64,
}

/// The list of jobs.
#[derive(Debug, Default)]
struct Jobs(Mutex<BTreeMap<u32, Job>>);

impl Jobs {
    fn get(&self, id: u32) -> Job {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&id).copied().unwrap_or_default()
    }

    /// Marks a job as done, unless a holder with a greater token has written before.
    fn finish(&self, id: u32, token: FencingToken) -> Result<(), AnyError> {
        let mut jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let job = jobs.entry(id).or_default();
        if job.is_done {
            return Err(format!("job {id} was done before").into());
        }
        if token.get() < job.token {
            return Err(format!("job {id}: token {token} is smaller than {}", job.token).into());
        }
        *job = Job { is_done: true, token: token.get() };
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let mut arguments = std::env::args().skip(1).collect();
    metrics::listen(&mut arguments)?;
    let url = arguments.into_iter().next().unwrap_or_else(|| "memory:".to_owned());
    let locks = Locks::connect(&url).await?;
    let jobs = Arc::new(Jobs::default());
    let workers: Vec<_> =
        (0..WORKERS).map(|worker| tokio::spawn(work(worker, locks.clone(), jobs.clone()))).collect();
    let mut done = 0;
    for worker in workers {
        done += worker.await??;
    }
    println!("{done} of {JOBS} jobs done, each of them once");
    Ok(())
}

/// Does all jobs that no other worker does. Returns their number.
async fn work(worker: usize, locks: Locks, jobs: Arc<Jobs>) -> Result<u32, AnyError> {
    let mut done = 0;
    for id in 0..JOBS {
        let lock = locks.lock(format!("{}/jobs/{id}", std::process::id()));
        let Some(guard) = lock.try_acquire().await? else { continue };
        // Another worker may have done it and released the lock.
        if jobs.get(id).is_done {
            guard.release().await?;
            continue;
        }
        let token = guard.fencing_token();
        // The work is dropped if the lock is lost. Otherwise the lock is released when the work has ended.
        guard.run(perform(&jobs, id, token)).await??;
        println!("worker {worker}: job {id}, token {token}");
        done += 1;
    }
    Ok(done)
}

async fn perform(jobs: &Jobs, id: u32, token: FencingToken) -> Result<(), AnyError> {
    tokio::task::yield_now().await;
    jobs.finish(id, token)
}
