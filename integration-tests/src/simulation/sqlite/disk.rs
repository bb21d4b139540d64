//! The disk of the machine, as the statements of its processes see it: each begins late, takes a while, or fails.

use std::{
    fmt, io,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use fastrand::Rng;
use polylock_core::sync::lock;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
};

use crate::simulation::{
    clock::WallClock,
    network::{Network, Way, nanos},
    plan::between,
    servers::Life,
    time::Time,
    timeline::Timeline,
};

/// The longest time after which a statement fails, in milliseconds.
const LONGEST_FAILURE_MS: u64 = 500;

/// The disk, and the clock of its machine.
#[derive(Debug)]
pub struct Disk {
    /// The clock of the machine.
    pub clock: WallClock,
    time: Arc<Time>,
    network: Arc<Network>,
    timeline: Arc<Timeline>,
    random: Mutex<Rng>,
    /// True while it hangs.
    hangs: AtomicBool,
    /// The statements that wait for the end of that, which go on in order of arrival.
    waiting: Notify,
}

impl Disk {
    /// Creates a disk that works.
    #[must_use]
    pub fn new(
        clock: WallClock,
        (time, network, timeline): (Arc<Time>, Arc<Network>, Arc<Timeline>),
        random: Rng,
    ) -> Arc<Self> {
        Arc::new(Self {
            clock,
            time,
            network,
            timeline,
            random: Mutex::new(random),
            hangs: AtomicBool::new(false),
            waiting: Notify::new(),
        })
    }

    /// Begins or ends a time in which no statement begins or ends.
    pub fn set_hangs(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::Relaxed);
        if !hangs {
            self.waiting.notify_waiters();
        }
    }

    /// Begins a statement of a process.
    #[must_use]
    pub fn statement(self: &Arc<Self>, process: Life) -> Statement {
        Statement { disk: self.clone(), process, sql: String::new(), has_begun: false, step: None }
    }

    /// Waits until a statement of a process may begin, or has ended.
    async fn step(self: Arc<Self>, process: usize, way: Way) -> io::Result<()> {
        let arrival = self.network.arrival(process, way);
        let Some(at) = arrival else {
            let fails = nanos(between(&mut lock(&self.random), 0..LONGEST_FAILURE_MS));
            self.time.sleep_until(self.time.now() + fails).await;
            return Err(io::Error::other("the disk has failed"));
        };
        self.time.sleep_until(at).await;
        while self.hangs.load(Ordering::Relaxed) {
            self.waiting.notified().await;
        }
        Ok(())
    }
}

/// A step of a statement.
type Step = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// A statement: what its process reads and writes.
pub struct Statement {
    disk: Arc<Disk>,
    process: Life,
    /// What the process has written.
    sql: String,
    has_begun: bool,
    step: Option<Step>,
}

impl fmt::Debug for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Statement").field("process", &self.process).finish_non_exhaustive()
    }
}

impl Statement {
    fn note(&self, text: &str) {
        let Self { process: (process, life), sql, .. } = self;
        self.disk.timeline.note("disk", || format!("p{process}.{life} {sql}: {text}"));
    }
}

impl AsyncRead for Statement {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { disk, process: (process, _), has_begun, step, .. } = &mut *self;
        let way = if *has_begun { Way::Back } else { Way::There };
        let step = step.get_or_insert_with(|| Box::pin(disk.clone().step(*process, way)));
        let outcome = ready!(step.as_mut().poll(context));
        self.step = None;
        if let Err(error) = outcome {
            self.note(&error.to_string());
            return Poll::Ready(Err(error));
        }
        if std::mem::replace(&mut self.has_begun, true) {
            buffer.put_slice(&[0]);
        } else {
            buffer.put_slice(&self.disk.clock.now_us().to_be_bytes());
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Statement {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let text = String::from_utf8_lossy(bytes);
        if self.has_begun {
            self.note(&text);
        } else {
            self.sql = shown(&text);
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Returns the beginning of `sql` on one line.
fn shown(sql: &str) -> String {
    let words = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    words.trim_start_matches("BEGIN IMMEDIATE; ").chars().take(60).collect()
}
