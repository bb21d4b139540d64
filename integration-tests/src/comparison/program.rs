//! A process of a library, which does what lines of its input say.

use std::time::Duration;

use polylock::Mode;
use polylock_testkit::history::Section;
use tempfile::TempDir;

use super::subject::Subject;
use crate::{clock::now, process::Process};

/// The time limit of a line that does not wait for a lock.
const LIMIT: Duration = Duration::from_secs(60);

/// The time limit of a line that waits for many locks.
const LONG_LIMIT: Duration = Duration::from_secs(180);

/// A process of a library.
#[derive(Debug)]
pub(super) struct Program {
    process: Process,
    /// The lines that nothing has waited for.
    pending: Vec<String>,
    /// Programs of `chaos` write their history there.
    _directory: TempDir,
}

/// An acquisition and its release, in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) client: String,
    pub(super) invoked: u64,
    /// The release began at once.
    pub(super) acquired: u64,
    pub(super) released: u64,
}

impl Pair {
    fn read(words: &str) -> Option<Self> {
        let mut words = words.split(' ');
        let client = words.next()?.to_owned();
        let mut number = || words.next()?.parse().ok();
        Some(Self { client, invoked: number()?, acquired: number()?, released: number()? })
    }

    /// Returns the time for both.
    pub(super) fn time(&self) -> Duration {
        Duration::from_nanos(self.released.saturating_sub(self.invoked))
    }

    /// Returns its section, of a client of this process.
    pub(super) fn section(&self, process: usize) -> Section {
        let client = format!("{process}.{}", self.client);
        Section::new("n", client, Mode::Exclusive, self.invoked..self.acquired).released(self.acquired)
    }
}

impl Program {
    /// Starts a process of the library, and waits until it has connected to the servers in `url`.
    pub(super) fn start(subject: &Subject, url: &str, lease: Duration) -> Result<Self, String> {
        let directory = TempDir::new().map_err(|error| format!("no directory: {error}"))?;
        let (lease, path) = (lease.as_millis().to_string(), directory.path().display().to_string());
        let arguments = ["measure", url, "p", &path, "1", "0", &lease, &lease, ""];
        let process = Process::start(subject.program(), arguments);
        let mut program = Self { process, pending: Vec::new(), _directory: directory };
        program.numbers("ready", LIMIT)?;
        Ok(program)
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn kill(&mut self) {
        self.process.kill();
    }

    /// Begins to acquire the lock.
    pub(super) fn take(&mut self, lock: &str) {
        self.process.send_line(&format!("take {lock}"));
    }

    /// Waits until it has the lock, and returns the time.
    pub(super) fn held(&mut self, lock: &str, limit: Duration) -> Result<u64, String> {
        self.numbers(&format!("held {lock}"), limit)?.last().copied().ok_or_else(|| "no time".to_owned())
    }

    /// Waits until it is notified of the loss, and returns the time.
    pub(super) fn lost(&mut self, lock: &str, limit: Duration) -> Result<u64, String> {
        self.numbers(&format!("lost {lock}"), limit)?.first().copied().ok_or_else(|| "no time".to_owned())
    }

    /// Releases the lock, and returns the time at which the release began.
    pub(super) fn drop_lock(&mut self, lock: &str) -> Result<u64, String> {
        self.process.send_line(&format!("drop {lock}"));
        self.numbers(&format!("dropped {lock}"), LIMIT)?.first().copied().ok_or_else(|| "no time".to_owned())
    }

    /// Begins to let clients use the lock again and again for this time.
    pub(super) fn begin_loop(&mut self, lock: &str, clients: usize, lasts: Duration) {
        self.process.send_line(&format!("loop {lock} {clients} {}", lasts.as_millis()));
    }

    /// Waits for the end of the loop.
    pub(super) fn end_loop(&mut self) -> Result<Vec<Pair>, String> {
        self.numbers("done", LONG_LIMIT)?;
        let pairs = std::mem::take(&mut self.pending);
        Ok(pairs.iter().filter_map(|line| Pair::read(line.strip_prefix("pair ")?)).collect())
    }

    /// Acquires and releases locks with different names.
    pub(super) fn sweep(&mut self, count: u32) -> Result<(), String> {
        self.process.send_line(&format!("sweep {count}"));
        self.numbers("done", LONG_LIMIT).map(drop)
    }

    /// Acquires locks with different names, which it holds until its end.
    pub(super) fn many(&mut self, count: u32) -> Result<(), String> {
        self.process.send_line(&format!("many {count}"));
        self.numbers("done", LONG_LIMIT).map(drop)
    }

    /// Waits for the line that begins with these words, and returns the numbers after them.
    fn numbers(&mut self, words: &str, limit: Duration) -> Result<Vec<u64>, String> {
        let until = now() + limit;
        // It may have arrived while another one was awaited.
        let found = self.pending.iter().enumerate().find_map(|(at, line)| Some((at, after(words, line)?)));
        if let Some((at, numbers)) = found {
            self.pending.remove(at);
            return Ok(numbers);
        }
        loop {
            let line = self.process.next_line(until.since(now()));
            let advice = || format!("no line {words:?} within {limit:?}, or the program has ended");
            let line = line.ok_or_else(advice)?;
            match after(words, &line) {
                Some(numbers) => return Ok(numbers),
                None => self.pending.push(line),
            }
        }
    }
}

/// Returns the numbers of a line that begins with these words.
fn after(words: &str, line: &str) -> Option<Vec<u64>> {
    let rest = line.strip_prefix(words)?;
    if !rest.is_empty() && !rest.starts_with(' ') {
        return None;
    }
    rest.split_whitespace().map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_distinguished_by_all_its_words() {
        assert_eq!(after("held a/1", "held a/1 5 7"), Some(vec![5, 7]));
        assert_eq!(after("done", "done"), Some(vec![]));
        assert_eq!(after("held a/1", "held a/10 5 7"), None);
        assert_eq!(after("held a/1", "lost a/1 5"), None);
    }

    #[test]
    fn a_pair_has_a_client_and_three_times() {
        let pair = Pair::read("3 10 20 50").expect("it is complete");
        assert_eq!((pair.client.as_str(), pair.time().as_nanos()), ("3", 40));
        let section = pair.section(2);
        assert_eq!((section.client.as_str(), section.end()), ("2.3", 20));
        assert_eq!(Pair::read("3 10 20"), None);
    }
}
