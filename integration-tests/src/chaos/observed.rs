//! Everything that was seen in a run, and the violations in it.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    path::Path,
};

use polylock_testkit::history::{self, Section};

use super::{
    looks::{Entry, Looks, Shown},
    plan::{Action, Kind},
    site::Applied,
};
use crate::simulation::violation::Violation;

/// From a time to another, in nanoseconds.
pub type Span = (u64, u64);

/// Everything that was seen in a run.
#[derive(Debug, Default, Clone)]
pub struct Observed {
    /// The sections of all processes.
    pub sections: Vec<Section>,
    /// The times at which a process did not run, by its name.
    pub stalls: BTreeMap<String, Vec<Span>>,
    /// The times in which many clients used the store.
    pub loads: Vec<Span>,
    /// The errors that only a bug explains, with their times.
    pub errors: Vec<(u64, String)>,
    /// The faults.
    pub applied: Vec<Applied>,
    /// The times at which requests ended, by the owners of these, and those of their holds.
    pub ended: HashMap<String, u64>,
    /// The process ids of killed processes, with the times.
    pub killed: Vec<(u32, u64)>,
    /// The process ids of all processes, with their names.
    pub processes: Vec<(u32, String)>,
    /// The holds that the store has shown.
    pub shown: Vec<Shown>,
    /// The entries that the store has shown.
    pub entries: Vec<Entry>,
    /// The violations that were found in another way than in the history.
    pub found: Vec<Found>,
}

impl Observed {
    /// Reads the [files](super::client::FILES) that the processes have written to `directory`.
    ///
    /// # Panics
    /// If they can't be read.
    #[must_use]
    pub fn read(directory: &Path) -> Self {
        let text = |path: &Path| {
            fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let files = fs::read_dir(directory)
            .and_then(|files| files.map(|file| Ok(file?.path())).collect::<io::Result<Vec<_>>>());
        let files = files.unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let (mut observed, mut sections) = (Self::default(), String::new());
        for path in files.into_iter().filter(|path| !path.is_dir()) {
            // The process of a file may have been killed in the middle of a line.
            let text = text(&path);
            let lines = || text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            match path.extension().and_then(|kind| kind.to_str()) {
                Some("sections") => lines().for_each(|line| sections.extend([line, "\n"])),
                Some("stalls") => {
                    observed.stalls.insert(name, lines().filter_map(span).collect());
                }
                Some("loads") => observed.loads.extend(lines().filter_map(span)),
                Some("requests") => observed.ended.extend(lines().filter_map(|line| {
                    let (at, owner) = line.split_once(' ')?;
                    Some((owner.to_owned(), at.parse().ok()?))
                })),
                _ => observed.errors.extend(lines().filter_map(|line| {
                    let (at, what) = line.split_once(' ')?;
                    Some((at.parse().ok()?, what.to_owned()))
                })),
            }
        }
        observed.sections = history::read(&sections).unwrap_or_else(|error| panic!("{error}"));
        observed
    }

    /// Returns it with what the store has shown.
    #[must_use]
    pub fn with(self, looks: &Looks) -> Self {
        Self { shown: looks.shown.clone(), entries: looks.entries.clone(), ..self }
    }

    /// Ends the holds of killed processes when these were killed: their clients hold nothing from then on.
    pub fn end_at_kills(&mut self) {
        let Self { sections, applied, .. } = self;
        history::end_at_kills(sections, |section| {
            let kills = applied.iter().filter(|fault| {
                matches!(fault.action, Action::KillClient(process) if section.client.starts_with(&format!("p{process}.")))
            });
            kills.map(|fault| fault.from).filter(|at| *at >= section.acquired).min()
        });
    }

    /// Returns true if this hold ended when its process was killed.
    #[must_use]
    pub fn ended_at_kill(&self, section: &Section) -> bool {
        let is_kill =
            |fault: &Applied| fault.action.kind() == Kind::ClientKill && section.released == Some(fault.from);
        section.open && self.applied.iter().any(is_kill)
    }

    /// Returns the name of the process of an owner.
    #[must_use]
    pub fn process_of_owner(&self, owner: &str) -> Option<&str> {
        let id = process_id(owner)?;
        self.processes.iter().find(|(known, _)| *known == id).map(|(_, name)| name.as_str())
    }

    /// Returns true if the process of an owner was killed.
    #[must_use]
    pub fn is_killed(&self, owner: &str) -> bool {
        self.killed_at(owner).is_some()
    }

    fn killed_at(&self, owner: &str) -> Option<u64> {
        let id = process_id(owner)?;
        self.killed.iter().find(|(killed, _)| *killed == id).map(|(_, at)| *at)
    }

    /// Returns the time at which the only request of this owner ended, and its hold: its client was done, or its process was killed.
    #[must_use]
    pub fn ended(&self, owner: &str) -> Option<u64> {
        self.ended.get(owner).copied().or_else(|| self.killed_at(owner))
    }

    /// Returns true if the error names a full disk, which a server had then.
    pub(super) fn is_out_of_room(&self, at: u64, what: &str) -> bool {
        let mut full = self.applied.iter().filter(|fault| fault.action.kind() == Kind::FullDisk);
        what.contains("disk is full") && full.any(|fault| (fault.from..=fault.to).contains(&at))
    }
}

/// A violation, and the part of the history that shows it.
#[derive(Debug, Clone)]
pub struct Found {
    /// The violation.
    pub violation: Violation,
    /// The name of the lock, if it concerns one.
    pub lock: Option<String>,
    /// The time from the first request to the end.
    pub span: Span,
}

impl Found {
    /// Creates a violation that concerns no single lock.
    #[must_use]
    pub fn new(at: u64, kind: &'static str, what: String) -> Self {
        Self { violation: Violation::new(at, kind, what), lock: None, span: (at, at) }
    }

    pub(super) fn of(violation: &history::Violation) -> Self {
        use history::Violation as V;
        let sections = match violation {
            V::Overlap { first, second }
            | V::TokenRegression { first, second }
            | V::RepeatedToken { first, second } => vec![first, second],
            V::Inversion { waited, overtook } => vec![waited, overtook],
            V::LateLoss { section } | V::LatePoll { section } => vec![section],
            _ => Vec::new(),
        };
        let violation = Violation::from(violation);
        let is_overlap = violation.kind == "overlap";
        let begin = |section: &Section| if is_overlap { section.acquired } else { section.invoked };
        let from = sections.iter().map(|section| begin(section)).min().unwrap_or(violation.at);
        let to = sections.iter().map(|section| section.end()).max().unwrap_or(violation.at);
        let lock = sections.first().map(|section| section.lock.clone());
        Self { violation, lock, span: (from, to) }
    }
}

/// Returns the name of the process of a client.
#[must_use]
pub fn process_of(client: &str) -> &str {
    client.rsplit_once('.').map_or(client, |(process, _)| process)
}

/// Returns the id of the process of an owner, which ends with it.
fn process_id(owner: &str) -> Option<u32> {
    owner.rsplit_once(':')?.1.parse().ok()
}

fn span(line: &str) -> Option<Span> {
    let (from, to) = line.split_once(' ')?;
    Some((from.parse().ok()?, to.parse().ok()?))
}
