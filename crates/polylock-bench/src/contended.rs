//! Contention for one lock, in one process and in several. Nothing is done under the lock.

use std::time::Duration;

use polylock::{Mode, Moment, core::Locks};
use polylock_testkit::history::{Recorder, Section};
use tokio::task::JoinSet;

use crate::{
    Children, Error, Result,
    child::{Job, read_sections},
    times::now,
};

/// The lock.
const NAME: &str = "contended";

/// Lets `tasks` tasks acquire and release one lock again and again for `lasts`. Task `i` uses the store `i` modulo their number: one store
/// for all, or a store for each, with its own connection or session.
///
/// # Errors
/// If an acquisition or a release fails.
///
/// # Cancel safety
/// Dropping the future ends the tasks.
pub async fn in_process(stores: &[Locks], tasks: usize, lasts: Duration) -> Result<Vec<Section>> {
    compete(stores, NAME, "", tasks, now() + lasts).await
}

/// Lets the tasks of several processes do the same.
///
/// # Errors
/// If an acquisition or a release fails, or a process.
///
/// # Cancel safety
/// Dropping the future kills the processes.
pub async fn across_processes(
    children: &Children,
    namespace: &str,
    (processes, tasks): (usize, usize),
    lasts: Duration,
) -> Result<Vec<Section>> {
    let job = |process: usize| Job::Contend {
        namespace: namespace.to_owned(),
        name: NAME.to_owned(),
        client: format!("{process}/"),
        tasks,
    };
    let jobs: Vec<Job> = (0..processes).map(job).collect();
    let mut workers = children.start_all(&jobs).await?;
    let until = (now() + lasts).as_nanos().to_string();
    workers.iter_mut().for_each(|worker| worker.0.send(&until));
    crate::times::pause(lasts).await;
    let mut sections = Vec::new();
    for worker in &mut workers {
        sections.extend(read_sections(worker).await?);
    }
    Ok(sections)
}

/// Lets tasks compete for the lock `name` until `until`, and returns their sections. `client` is the beginning of their names.
pub(crate) async fn compete(
    stores: &[Locks],
    name: &str,
    client: &str,
    tasks: usize,
    until: Moment,
) -> Result<Vec<Section>> {
    let recorder = Recorder::new();
    let mut running = JoinSet::new();
    for (task, locks) in (0..tasks).zip(stores.iter().cycle()) {
        let (locks, recorder) = (locks.clone(), recorder.clone());
        let (name, client) = (name.to_owned(), format!("{client}{task}"));
        running.spawn(async move {
            while now() < until {
                let attempt = recorder.invoke(&name, &client, Mode::Exclusive);
                let guard = locks.lock(&name).acquire().await?;
                attempt.acquired(&guard).releasing(&guard);
                guard.release().await?;
            }
            Ok::<_, polylock::Error>(())
        });
    }
    finish(running).await?;
    Ok(recorder.sections())
}

/// Waits for the end of all tasks. The first error ends all.
pub(crate) async fn finish<T: 'static>(mut tasks: JoinSet<polylock::Result<T>>) -> Result<Vec<T>> {
    let mut results = Vec::new();
    while let Some(done) = tasks.join_next().await {
        let done = done.map_err(|error| Error::Child(format!("a task has ended: {error}")))?;
        results.push(done?);
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use polylock::core::memory;

    use super::*;
    use crate::Summary;

    #[tokio::test(flavor = "multi_thread")]
    async fn all_tasks_take_part_until_the_end() {
        let lasts = Duration::from_secs(1);
        let sections = in_process(&[Locks::new(memory::connect())], 5, lasts).await.unwrap();
        let summary = Summary::of_correct(&sections).unwrap();
        assert_eq!(summary.shares.len(), 5);
        assert!(summary.elapsed >= lasts / 2 && summary.sections >= 10, "{summary}");
    }

    #[tokio::test]
    async fn the_error_of_a_task_is_the_result() {
        let mut tasks = JoinSet::new();
        tasks.spawn(async { Locks::new(memory::connect()).lock("").acquire().await.map(drop) });
        tasks.spawn(std::future::pending());
        assert!(matches!(finish(tasks).await, Err(Error::Store(polylock::Error::InvalidName(_)))));
    }
}
