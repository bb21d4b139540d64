//! The processes of a command: the command, and everything that it has started.
//!
//! They are found through their ancestor. The warden is the parent of the command and a child subreaper, so every process of the
//! command is its descendant: also one that has left the process group or the session, and one whose own parent has ended. The
//! kernel lists the children of each process (`/proc/<pid>/task/<tid>/children`), so the cost of a search depends on the number of
//! the command's processes alone. On a kernel without these lists (no `CONFIG_PROC_CHILDREN`) all processes of the machine are
//! read instead, after the process group was killed.

mod process;

use std::{collections::HashSet, fs, sync::OnceLock};

use rustix::{
    io::Errno,
    process::{Pid, Signal, getpid, getppid, kill_process_group},
};

pub(super) use self::process::{Process, Stat};

/// How many passes a kill makes at most while it finds new processes.
const PASSES: usize = 100;

/// The processes of a command, as its warden or its wrapper finds and signals them.
#[derive(Debug, Default)]
pub(super) struct ProcessTree {
    /// All children of these belong to the command, ...
    pub(super) ancestors: Vec<Ancestor>,
    /// ... but for these.
    pub(super) excluded: Vec<Pid>,
    /// The first process.
    pub(super) command: Option<Process>,
    /// The process group that the command was started in, if it has one of its own.
    pub(super) group: Option<Group>,
    /// The processes outside the group that the last look has found.
    pub(super) outside: Vec<Process>,
}

/// A process whose children are searched, and the reason why its number is not reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ancestor {
    /// This process.
    This,
    /// A child of this process, which has not reaped it.
    Child(Pid),
    /// The process of this number, for as long as it is the parent of this one.
    Parent(Pid),
}

/// A process group, and the reason why its number is not reused.
#[derive(Debug, Clone)]
pub(super) struct Group {
    id: Pid,
    /// Members, one of which must exist at each signal; `None` if the leader is not reaped before the last signal.
    members: Option<Vec<(Pid, u64)>>,
}

impl Group {
    /// A group whose leader is not reaped before the last signal was sent.
    pub(super) fn unreaped(id: Pid) -> Self {
        Self { id, members: None }
    }

    /// A group that is signalled while one of these processes, by number and start time, is a member of it.
    pub(super) fn while_member(id: Pid, members: Vec<(Pid, u64)>) -> Self {
        Self { id, members: Some(members) }
    }

    fn exists(&self) -> bool {
        let is_member = |(id, started): &(Pid, u64)| {
            Stat::of(*id).is_some_and(|stat| stat.group == Some(self.id) && stat.started == *started)
        };
        self.members.as_ref().is_none_or(|members| members.iter().any(is_member))
    }

    fn signal(&self, signal: Signal) {
        // The group 1 would be a signal to every process of the machine.
        if self.id != Pid::INIT && self.exists() {
            // Fails for an empty group.
            kill_process_group(self.id, signal).ok();
        }
    }
}

/// What is left after a kill.
#[derive(Debug, Default)]
pub(super) struct Remaining {
    /// Killed, and not gone yet.
    pub(super) dying: Vec<Process>,
    /// Alive, because this process has no right to kill them.
    pub(super) refused: Vec<Process>,
}

impl Remaining {
    pub(super) fn is_empty(&self) -> bool {
        self.dying.is_empty() && self.refused.is_empty()
    }
}

impl ProcessTree {
    /// Passes a signal on: to the whole group, or to the command alone.
    pub(super) fn forward(&self, signal: Signal) {
        match (&self.group, &self.command) {
            (Some(group), _) => group.signal(signal),
            // A process that is gone needs no signal.
            (None, Some(command)) => {
                command.signal(signal).ok();
            }
            (None, None) => {}
        }
    }

    /// Sends `signal` to every process: to the group at once, to the others one by one.
    pub(super) fn signal_all(&self, signal: Signal) {
        let outside = self.find_outside();
        if let Some(group) = &self.group {
            group.signal(signal);
        }
        for process in outside {
            process.signal(signal).ok();
        }
    }

    /// Kills every process and returns those that are not gone yet. To be called again until none is left: a process may have
    /// started another one just before it was killed.
    pub(super) fn kill(&mut self) -> Remaining {
        // One signal, before anything is read: it takes the same time however many processes there are.
        if let Some(group) = &self.group {
            group.signal(Signal::KILL);
        }
        for process in self.command.iter().chain(&self.outside) {
            process.signal(Signal::KILL).ok();
        }
        // Again at once while there are new ones: a process that starts another one and ends, again and again, must not be given
        // the time to do so.
        let mut signalled = HashSet::new();
        let mut remaining = Remaining::default();
        for _ in 0..PASSES {
            remaining = Remaining::default();
            let mut is_new = false;
            for process in self.find() {
                is_new |= signalled.insert(process.id());
                match process.signal(Signal::KILL) {
                    Err(Errno::PERM) => remaining.refused.push(process),
                    _ => remaining.dying.push(process),
                }
            }
            if !is_new {
                break;
            }
        }
        remaining
    }

    /// Notes which processes have left the group, so that the next kill reaches them first, and returns those that this process
    /// has no right to signal.
    pub(super) fn look(&mut self) -> Vec<Process> {
        self.outside = self.find_outside();
        // Signalling a group succeeds if one member may be signalled, so its members are checked, too.
        self.find().into_iter().filter(Process::is_out_of_reach).collect()
    }

    /// Whether every process has ended.
    pub(super) fn is_gone(&self) -> bool {
        self.find().is_empty()
    }

    fn find_outside(&self) -> Vec<Process> {
        let mut found = self.find();
        if let Some(group) = &self.group {
            found.retain(|process| Stat::of(process.id()).and_then(|stat| stat.group) != Some(group.id));
        }
        found
    }

    /// All processes of the command that have not ended.
    fn find(&self) -> Vec<Process> {
        let found = self.search();
        // A list of children may lack one if another one was reaped while it was read.
        if found.is_empty() { self.search() } else { found }
    }

    fn search(&self) -> Vec<Process> {
        let kinship = Kinship::read();
        let mut found: Vec<Process> = Vec::new();
        // In no case the first process of the machine, or this one.
        let mut seen: HashSet<Pid> = self.excluded.iter().copied().chain([Pid::INIT, getpid()]).collect();
        let mut add = |found: &mut Vec<Process>, processes: Vec<Process>| {
            found.extend(processes.into_iter().filter(|one| !one.has_ended() && seen.insert(one.id())));
        };
        for ancestor in &self.ancestors {
            add(&mut found, ancestor.children(&kinship));
        }
        add(&mut found, self.command.iter().chain(&self.outside).cloned().collect());
        let mut next = 0;
        while let Some(parent) = found.get(next).cloned() {
            let children = kinship.children(parent.id());
            // The number of a parent that has ended may have been reused.
            if !parent.has_ended() {
                add(&mut found, children);
            }
            next += 1;
        }
        found
    }
}

impl Ancestor {
    fn children(self, kinship: &Kinship) -> Vec<Process> {
        let id = match self {
            Self::This => getpid(),
            Self::Child(id) | Self::Parent(id) => id,
        };
        let children = kinship.children(id);
        // A parent may have ended, and its number may have been reused. The children of the first process of the machine, or of a
        // container, are the orphans of all programs.
        let is_its_own = id != Pid::INIT && (!matches!(self, Self::Parent(_)) || getppid() == Some(id));
        if is_its_own { children } else { Vec::new() }
    }
}

/// Which process is whose child.
enum Kinship {
    /// Each process has a list of its children.
    Lists,
    /// All processes of the machine, as they were read once; none where there is no `/proc`.
    Table(Vec<Stat>),
}

impl Kinship {
    fn read() -> Self {
        static LISTS: OnceLock<bool> = OnceLock::new();
        let list = || fs::exists(format!("/proc/self/task/{}/children", getpid())).unwrap_or(false);
        if *LISTS.get_or_init(list) { Self::Lists } else { Self::table() }
    }

    fn table() -> Self {
        let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = numbers.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        Self::Table(ids.filter_map(Stat::of).collect())
    }

    /// The children of the process `parent`, which must not have been reaped when this returns.
    ///
    /// The list is read twice, and a process that is not in the second one is dropped, because of this race: a child of the first
    /// list ends and is reaped, its number is given to another process, and that process is opened.
    fn children(&self, parent: Pid) -> Vec<Process> {
        let mut children: Vec<Process> = self.numbers(parent).into_iter().filter_map(Process::open).collect();
        if children.is_empty() {
            return children;
        }
        let confirmed = match self {
            Self::Lists => self.numbers(parent),
            Self::Table(_) => {
                let stats = children.iter().filter_map(|child| Stat::of(child.id()));
                stats.filter(|stat| stat.parent == Some(parent)).map(|stat| stat.id).collect()
            }
        };
        children.retain(|child| confirmed.contains(&child.id()));
        children
    }

    fn numbers(&self, parent: Pid) -> Vec<Pid> {
        match self {
            Self::Lists => numbers_in_lists(parent),
            Self::Table(stats) => {
                stats.iter().filter(|stat| stat.parent == Some(parent)).map(|stat| stat.id).collect()
            }
        }
    }
}

/// Makes this process the parent of its descendants whose own parents end, where the system supports it.
pub(super) fn become_subreaper() {
    // Cannot fail on a supported kernel. On other systems such processes are not found.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(getpid())).ok();
}

/// The numbers of the children of this process, zombies included.
pub(super) fn children() -> Vec<Pid> {
    Kinship::read().numbers(getpid())
}

/// The numbers of the children of `parent`; none if it is gone.
fn numbers_in_lists(parent: Pid) -> Vec<Pid> {
    // A child belongs to the thread that has started it.
    let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let numbers = |list: String| {
        let ids = list.split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?));
        ids.collect::<Vec<_>>()
    };
    lists.flat_map(numbers).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A shell that has started a child which leaves the session, and a grandchild.
    fn family() -> (Child, ProcessTree) {
        let mut command = Command::new("sh");
        command.args(["-c", "setsid sh -c 'sleep 60 & wait' & wait"]).stdout(Stdio::null());
        let child = command.spawn().unwrap();
        let command = Process::open(Pid::from_child(&child));
        (child, ProcessTree { command, ..ProcessTree::default() })
    }

    #[test]
    fn descendants_are_found_from_above_and_killed() {
        let (mut child, mut tree) = family();
        while tree.find().len() < 3 {
            std::thread::yield_now();
        }
        assert!(tree.look().is_empty() && !tree.is_gone());
        assert_eq!(tree.outside.len(), 3);
        // When the shell has ended, the other two are found only because `look` has noted them.
        while !tree.kill().is_empty() {
            child.try_wait().unwrap();
        }
        child.wait().unwrap();
        assert!(tree.is_gone());
    }

    #[test]
    fn lists_of_children_and_the_table_of_all_processes_say_the_same() {
        let (mut child, tree) = family();
        while tree.find().len() < 3 {
            std::thread::yield_now();
        }
        let id = Pid::from_child(&child);
        let ids = |processes: Vec<Process>| processes.iter().map(Process::id).collect::<Vec<_>>();
        let listed = ids(Kinship::Lists.children(id));
        assert_eq!(listed.len(), 1);
        assert_eq!(ids(Kinship::table().children(id)), listed);
        assert!(Kinship::Lists.children(listed[0]).iter().all(|process| process.id() != id));
        for process in tree.find() {
            process.signal(Signal::KILL).unwrap();
        }
        child.wait().unwrap();
    }

    #[test]
    fn a_group_without_a_known_member_is_not_signalled() {
        use std::os::unix::process::CommandExt;

        let mut sleeper = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let id = Pid::from_child(&sleeper);
        let started = Stat::of(id).unwrap().started;
        Group::while_member(id, vec![(id, started - 1), (getpid(), started)]).signal(Signal::KILL);
        // A process that gets a signal ends a moment later.
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(10));
            assert!(!Process::open(id).unwrap().has_ended());
        }
        Group::while_member(id, vec![(id, started)]).signal(Signal::KILL);
        sleeper.wait().unwrap();
    }
}
