//! The coordinator's end of one of the four processes.

use std::{
    collections::HashMap,
    io,
    path::Path,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use polylock_core::{Clock, SystemClock, sync::lock};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command as Program},
    sync::{Mutex as AsyncMutex, oneshot},
};

use super::message::{Action, Command, Reply};
use crate::clock::now;

/// The time limit of an operation: longer than every wait and every outage.
const LIMIT: Duration = Duration::from_secs(90);

/// A process. It is killed when this is dropped.
#[derive(Debug)]
pub struct Remote {
    child: Child,
    input: AsyncMutex<ChildStdin>,
    waiting: Arc<Mutex<HashMap<u64, oneshot::Sender<Reply>>>>,
    next: AtomicU64,
}

impl Remote {
    /// Starts the program `worker` with this number of connections to the store at `url`.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(worker: &Path, url: &str, lanes: usize) -> io::Result<Self> {
        let mut program = Program::new(worker);
        program.args(["late", url, "-", &lanes.to_string()]).kill_on_drop(true);
        let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both are piped")
        };
        let waiting = Arc::<Mutex<HashMap<u64, oneshot::Sender<Reply>>>>::default();
        let replies = waiting.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let Ok(reply) = serde_json::from_str::<Reply>(&line) else { continue };
                if let Some(sender) = lock(&replies).remove(&reply.id) {
                    // An error means that the coordinator does not wait any more.
                    sender.send(reply).ok();
                }
            }
            lock(&replies).clear();
        });
        Ok(Self { child, input: AsyncMutex::new(input), waiting, next: AtomicU64::new(0) })
    }

    /// Carries an operation out, and returns its reply; `None` if the process has ended, or does not reply.
    pub async fn call(&self, lane: usize, action: Action) -> Option<Reply> {
        let id = self.next.fetch_add(1, Relaxed);
        let (sender, reply) = oneshot::channel();
        lock(&self.waiting).insert(id, sender);
        let mut line = serde_json::to_vec(&Command { id, lane, action }).ok()?;
        line.push(b'\n');
        self.input.lock().await.write_all(&line).await.ok()?;
        SystemClock.before(now() + LIMIT, reply).await?.ok()
    }

    /// Stops the process for this time.
    pub async fn pause(&self, time: Duration) {
        let Some(id) = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) else { return };
        // An error means that it has ended.
        kill_process(id, Signal::STOP).ok();
        SystemClock.sleep_until(now() + time).await;
        kill_process(id, Signal::CONT).ok();
    }
}
