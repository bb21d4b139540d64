//! The child processes of the benchmark, and their jobs.
//!
//! The caller starts them by a command of its own, and passes the store in its own way, so that no secret is in a job.

use std::{io, process::Command, time::Duration};

use polylock::Moment;
use polylock_testkit::history::Section;
use serde::{Deserialize, Serialize};

use crate::{Error, Result, process::Worker, times::now};

/// The time limit for each reply of a child process that does not wait for a lock.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The reply of a child process that has opened the store.
pub(crate) const READY: &str = "ready";
/// The reply of a child process that has a lock.
pub(crate) const HELD: &str = "held";
/// The first word of an error of a child process.
pub(crate) const ERROR: &str = "error ";

/// The job of a child process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Job {
    /// Waits for the lock at each line of the input, and writes the time at which it was granted.
    Wait { namespace: String, name: String },
    /// Competes for the lock with some tasks from a line of the input until a time, and writes the sections.
    Contend { namespace: String, name: String, client: String, tasks: usize },
    /// Holds the lock until it is killed.
    Hold { namespace: String, name: String, ttl_ms: u64, session_ms: Option<u64> },
}

impl Job {
    pub(crate) fn namespace(&self) -> &str {
        match self {
            Self::Wait { namespace, .. } | Self::Contend { namespace, .. } | Self::Hold { namespace, .. } => {
                namespace
            }
        }
    }

    /// Returns the timeout of the session, if it is not that of the store's URL.
    pub(crate) fn session(&self) -> Option<Duration> {
        match self {
            Self::Hold { session_ms, .. } => session_ms.map(Duration::from_millis),
            Self::Wait { .. } | Self::Contend { .. } => None,
        }
    }
}

/// Starts child processes for one store.
///
/// The command must call [`run_child`](crate::run_child) with the same store.
pub struct Children(Box<dyn Fn() -> io::Result<Command> + Send + Sync>);

impl std::fmt::Debug for Children {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Children").finish_non_exhaustive()
    }
}

impl Children {
    /// Starts child processes with the commands that `command` returns.
    pub fn new(command: impl Fn() -> io::Result<Command> + Send + Sync + 'static) -> Self {
        Self(Box::new(command))
    }

    /// Starts a child process, and waits until it has opened the store.
    pub(crate) async fn start(&self, job: &Job) -> Result<Child> {
        let mut child = self.begin(job)?;
        child.expect(READY).await?;
        Ok(child)
    }

    /// Starts child processes at the same time, and waits until all have opened the store.
    pub(crate) async fn start_all(&self, jobs: &[Job]) -> Result<Vec<Child>> {
        let mut children = jobs.iter().map(|job| self.begin(job)).collect::<Result<Vec<_>>>()?;
        for child in &mut children {
            child.expect(READY).await?;
        }
        Ok(children)
    }

    fn begin(&self, job: &Job) -> Result<Child> {
        let failed = |error: io::Error| Error::Child(format!("it can't be started: {error}"));
        let command = (self.0)().map_err(failed)?;
        Worker::start(command, job).map(Child).map_err(failed)
    }
}

/// A child process of the benchmark.
#[derive(Debug)]
pub(crate) struct Child(pub(crate) Worker);

impl Child {
    /// Returns the next line.
    ///
    /// # Errors
    /// If the process has ended, has reported an error, or writes no line in time.
    pub(crate) async fn next_line(&mut self) -> Result<String> {
        self.next_line_by(now() + TIMEOUT).await
    }

    /// Returns the next line that it writes before `deadline`.
    pub(crate) async fn next_line_by(&mut self, deadline: Moment) -> Result<String> {
        let Some(line) = self.0.next_line(deadline).await else {
            let problem = if now() < deadline { "it has ended" } else { "it has not replied in time" };
            return Err(Error::Child(problem.to_owned()));
        };
        match line.strip_prefix(ERROR) {
            Some(error) => Err(Error::Child(error.to_owned())),
            None => Ok(line),
        }
    }

    /// Waits for this line.
    pub(crate) async fn expect(&mut self, wanted: &str) -> Result<()> {
        let line = self.next_line().await?;
        if line == wanted {
            return Ok(());
        }
        Err(Error::Child(format!("it has replied {line:?} instead of {wanted:?}")))
    }
}

/// Reads the sections of a process that competes, up to an empty line.
pub(crate) async fn read_sections(child: &mut Child) -> Result<Vec<Section>> {
    let mut sections = Vec::new();
    loop {
        let line = child.next_line().await?;
        if line.is_empty() {
            return Ok(sections);
        }
        sections.push(line.parse().map_err(|error| Error::Child(format!("{error}")))?);
    }
}
