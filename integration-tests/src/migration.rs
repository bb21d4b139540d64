//! A fleet of processes that moves from one store to another, process by process, while processes are killed and stopped.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use polylock_testkit::history::{self, Section, Violation};
use tempfile::TempDir;

use crate::{
    chaos::{
        client::Work,
        observed::{Observed, process_of},
    },
    clock::{self, now},
    process::Process,
    simulation::check,
};

/// The number of processes.
const PROCESSES: usize = 3;

/// The number of clients of each process.
const CLIENTS: usize = 8;

/// The leases of the clients, in milliseconds.
const LEASES: (u64, u64) = (1000, 2000);

/// The time for which a process may take to open the store, and to end.
const LIMIT: Duration = Duration::from_secs(60);

/// The time after a deadline within which a running process reports the loss. Other tests measure it; here the processes compete for the
/// processors.
const TOLERANCE: Duration = Duration::from_secs(3);

/// A fleet, with the directory of its history.
#[derive(Debug)]
pub struct Fleet {
    worker: String,
    directory: TempDir,
    random: Rng,
    members: Vec<Member>,
    /// The times at which processes were killed, by their names.
    killed: BTreeMap<String, u64>,
    /// The number of processes that were started.
    lives: u64,
    /// The number of processes that were stopped.
    stops: u64,
}

#[derive(Debug)]
struct Member {
    name: String,
    process: Process,
}

/// The outcome of a migration.
#[derive(Debug)]
pub struct Outcome {
    /// The number of sections.
    pub sections: usize,
    /// The number of processes that were killed.
    pub kills: usize,
    /// The number of processes that were stopped for longer than a lease.
    pub stops: u64,
    /// The violations of promises.
    pub violations: Vec<Violation>,
    /// The errors of clients that no fault explains.
    pub errors: Vec<String>,
}

impl Outcome {
    /// Returns the number of overlaps.
    #[must_use]
    pub fn overlaps(&self) -> usize {
        self.violations.iter().filter(|violation| matches!(violation, Violation::Overlap { .. })).count()
    }
}

impl Fleet {
    /// Starts the processes on the store at `url`. The program `worker` has the clients, and `seed` determines the faults.
    ///
    /// # Panics
    /// If a process does not open the store.
    #[must_use]
    pub fn start(worker: &str, url: &str, seed: u64) -> Self {
        let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("no directory: {error}"));
        let mut fleet = Self {
            worker: worker.to_owned(),
            directory,
            random: Rng::with_seed(seed),
            members: Vec::new(),
            killed: BTreeMap::new(),
            lives: 0,
            stops: 0,
        };
        for _ in 0..PROCESSES {
            let member = fleet.launch(url);
            fleet.members.push(member);
        }
        fleet
    }

    fn launch(&mut self, url: &str) -> Member {
        let name = format!("p{}", self.lives);
        let work = Work {
            url: url.to_owned(),
            directory: self.directory.path().to_owned(),
            name: name.clone(),
            seed: self.lives,
            clients: CLIENTS,
            leases: LEASES,
            bug: None,
            is_dense: true,
            // The token of a hold in both stores is greater than that of its part in one of them.
            hands_over: false,
            outlasts: false,
        };
        self.lives += 1;
        let mut process = Process::start(&self.worker, work.arguments());
        let line = process.next_line(LIMIT);
        assert_eq!(line.as_deref(), Some("ready"), "{name} does not open the store");
        Member { name, process }
    }

    /// Moves every process to the store at `to`, one after the other, while the others use `from` or `to` already. One of them ends
    /// regularly, the others are killed. Between two of them, processes are killed and stopped, for the time in which the history grows by
    /// `sections`.
    ///
    /// # Panics
    /// If a process fails, or the history does not grow.
    pub fn migrate(&mut self, from: &str, to: &str, sections: usize) {
        let mut urls = [from; PROCESSES];
        for moved in 0..PROCESSES {
            if moved == 1 {
                self.end(moved);
            } else {
                self.kill(moved);
            }
            urls[moved] = to;
            self.members[moved] = self.launch(to);
            let (until, limit) = (self.sections() + sections, now() + LIMIT);
            while self.sections() < until {
                assert!(now() < limit, "fewer than {sections} sections within {LIMIT:?}");
                self.disturb(&urls);
            }
        }
    }

    /// Kills a process and starts another one with its URL, or stops it for a time around the length of a lease.
    fn disturb(&mut self, urls: &[&str]) {
        let member = self.random.usize(..PROCESSES);
        if self.random.u8(..4) == 0 {
            self.kill(member);
            self.members[member] = self.launch(urls[member]);
        } else {
            let process = &self.members[member].process;
            process.stop();
            let lasts = self.random.u64(LEASES.0 / 4..LEASES.1 * 3 / 2);
            self.stops += u64::from(lasts > LEASES.0);
            clock::within(Duration::from_millis(lasts), || false);
            process.resume();
        }
        let pause = Duration::from_millis(self.random.u64(..500));
        clock::within(pause, || false);
    }

    fn kill(&mut self, member: usize) {
        let Member { name, process } = &mut self.members[member];
        self.killed.insert(name.clone(), now().as_nanos());
        process.kill();
    }

    /// Ends a process regularly.
    fn end(&mut self, member: usize) {
        let Member { name, process } = &mut self.members[member];
        process.send_line("stop");
        let last = process.next_line(LIMIT);
        assert_eq!(last.as_deref(), Some("done"), "{name} does not end");
        process.wait_for_exit();
    }

    /// Ends all processes and checks the history.
    ///
    /// # Panics
    /// If a process does not end, or the history can't be read.
    #[must_use]
    pub fn finish(mut self) -> Outcome {
        self.members.iter_mut().for_each(|member| member.process.send_line("stop"));
        for Member { name, process } in &mut self.members {
            let last = process.next_line(LIMIT);
            assert_eq!(last.as_deref(), Some("done"), "{name} does not end");
        }
        let Observed { mut sections, stalls, errors, .. } = Observed::read(self.directory.path());
        history::end_at_kills(&mut sections, |section| self.killed.get(process_of(&section.client)).copied());
        let stalls_of =
            |section: &Section| stalls.get(process_of(&section.client)).cloned().unwrap_or_default();
        Outcome {
            sections: sections.len(),
            kills: self.killed.len(),
            stops: self.stops,
            violations: check::sections(&sections, TOLERANCE, stalls_of),
            errors: errors.into_iter().map(|(at, what)| format!("{at} {what}")).collect(),
        }
    }

    fn sections(&self) -> usize {
        Observed::read(self.directory.path()).sections.len()
    }
}
