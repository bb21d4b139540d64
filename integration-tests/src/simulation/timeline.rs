//! The readable record of a run.

use std::{
    fmt,
    hash::{DefaultHasher, Hasher},
    path::Path,
    sync::{Arc, Mutex, OnceLock},
};

use polylock_core::sync::lock;

use super::time::Time;

/// The events of a run, if they are recorded.
#[derive(Debug)]
pub struct Timeline {
    time: Arc<Time>,
    lines: Option<Mutex<Vec<Line>>>,
    /// A directory that has another name in each run.
    directory: OnceLock<String>,
}

/// An event.
#[derive(Debug, Clone)]
pub struct Line {
    /// The time, in nanoseconds since the begin of the run.
    pub at: u64,
    node: String,
    event: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (s, us) = (self.at / 1_000_000_000, self.at / 1000 % 1_000_000);
        write!(f, "{s:>3}.{us:06}  {:<8} {}", self.node, self.event)
    }
}

impl Timeline {
    /// Creates a timeline, which stays empty unless `is_recorded`.
    #[must_use]
    pub fn new(time: Arc<Time>, is_recorded: bool) -> Arc<Self> {
        Arc::new(Self { time, lines: is_recorded.then(Mutex::default), directory: OnceLock::new() })
    }

    /// Writes the path of the temporary `directory` of the run as `(directory)`, so that equal runs have equal events.
    pub fn hide(&self, directory: &Path) {
        self.directory.get_or_init(|| directory.to_string_lossy().into_owned());
    }

    /// Returns true if events are recorded.
    #[must_use]
    pub const fn is_recorded(&self) -> bool {
        self.lines.is_some()
    }

    /// Adds an event of a process, a server or the network, described by `event`.
    pub fn note(&self, node: impl fmt::Display, event: impl FnOnce() -> String) {
        if let Some(lines) = &self.lines {
            let mut event = event();
            if let Some(path) = self.directory.get() {
                event = event.replace(path, "(directory)");
            }
            lock(lines).push(Line { at: self.time.now(), node: node.to_string(), event });
        }
    }

    /// Returns the events.
    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        self.lines.as_ref().map(|lines| lock(lines).clone()).unwrap_or_default()
    }
}

/// Returns a hash of `lines`, equal for equal runs.
#[must_use]
pub fn hash(lines: &[Line]) -> u64 {
    let mut hasher = DefaultHasher::new();
    lines.iter().for_each(|line| hasher.write(line.to_string().as_bytes()));
    hasher.finish()
}
