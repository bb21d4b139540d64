//! The processes of a command: the command, and all processes that it has started.
//!
//! They are found through their ancestor. The warden is the parent of the command and a child subreaper, so every process of the command
//! is its descendant, even if it has left the process group or the session, or if its own parent has ended. The kernel lists the children
//! of each process (`/proc/<pid>/task/<tid>/children`), so the cost of a search depends only on the number of the command's processes. On
//! a kernel without these lists (no `CONFIG_PROC_CHILDREN`) all processes of the machine are read instead, after the process group was
//! killed.

mod ancestry;
#[cfg(test)]
mod fuzz;
mod numbers;
mod process;

use std::{collections::HashSet, fs, sync::OnceLock};

use rustix::{
    io::Errno,
    process::{Pid, Signal, getpid, getppid, kill_process_group},
};

pub(crate) use self::process::Process;
pub(super) use self::{ancestry::has_ancestor, numbers::check_proc, process::Stat};

/// The maximum number of passes of a kill while it finds new processes.
const MAX_PASSES: usize = 100;

/// The processes of a command, as its warden or its wrapper finds and signals them.
#[derive(Debug, Default)]
pub(super) struct ProcessTree {
    /// The ancestors of the command's processes: all children of these belong to the command, ...
    pub(super) ancestors: Vec<Ancestor>,
    /// ... except for these.
    pub(super) excluded: Vec<Pid>,
    /// The first process of the command.
    pub(super) command: Option<Process>,
    /// The process group of the command, if it was started in one of its own.
    pub(super) group: Option<Group>,
    /// The processes outside the group that the last search has found.
    pub(super) outside: Vec<Process>,
}

/// A process with children that are searched, and the reason why its pid is not reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ancestor {
    /// This process.
    This,
    /// A child of this process that has not been reaped.
    Child(Pid),
    /// The process with this pid, for as long as it is the parent of this one.
    Parent(Pid),
}

/// A process group, and the reason why its id is not reused.
#[derive(Debug, Clone)]
pub(super) struct Group {
    id: Pid,
    /// Members, one of which must exist at each signal; `None` if the leader is not reaped before the last signal.
    members: Option<Vec<(Pid, u64)>>,
}

impl Group {
    /// Returns a group with a leader that is not reaped before the last signal was sent.
    pub(super) fn unreaped(id: Pid) -> Self {
        Self { id, members: None }
    }

    /// Returns a group that is signalled while one of these processes, by pid and start time, is a member of it.
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
            // This fails for an empty group.
            kill_process_group(self.id, signal).ok();
        }
    }
}

/// The processes that remain after a kill.
#[derive(Debug, Default)]
pub(super) struct Remaining {
    /// Killed processes that have not ended yet.
    pub(super) dying: Vec<Process>,
    /// Living processes that this process has no permission to kill.
    pub(super) refused: Vec<Process>,
}

impl Remaining {
    pub(super) fn is_empty(&self) -> bool {
        self.dying.is_empty() && self.refused.is_empty()
    }
}

impl ProcessTree {
    /// Forwards a signal: to the whole group, or to the command alone.
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

    /// Kills every process and returns those that have not ended yet. It must be called again until none is left: a process may have
    /// started another one just before it was killed.
    pub(super) fn kill(&mut self) -> Remaining {
        // One signal, before any process is looked up: it takes the same time however many processes there are.
        if let Some(group) = &self.group {
            group.signal(Signal::KILL);
        }
        for process in self.command.iter().chain(&self.outside) {
            process.signal(Signal::KILL).ok();
        }
        // It repeats at once while there are new processes: a process that starts another one and ends, again and again, must not get the
        // time to do so.
        let mut signalled = HashSet::new();
        let mut remaining = Remaining::default();
        for _ in 0..MAX_PASSES {
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

    /// Records the processes that have left the group, so that the next kill reaches them first, and returns those that this process has
    /// no permission to signal.
    pub(super) fn refresh(&mut self) -> Vec<Process> {
        self.outside = self.find_outside();
        // Signalling a group succeeds if one member may be signalled, so its members are checked, too.
        self.find().into_iter().filter(Process::is_unkillable).collect()
    }

    /// Returns true if every process has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.find().is_empty()
    }

    fn find_outside(&self) -> Vec<Process> {
        let mut found = self.find();
        if let Some(group) = &self.group {
            found.retain(|process| Stat::of(process.id()).and_then(|stat| stat.group) != Some(group.id));
        }
        found
    }

    /// Returns all processes of the command that have not ended.
    fn find(&self) -> Vec<Process> {
        let found = self.search();
        // A list of children may lack one if another one was reaped while it was read.
        if found.is_empty() { self.search() } else { found }
    }

    fn search(&self) -> Vec<Process> {
        let lookup = ChildLookup::read();
        let mut found: Vec<Process> = Vec::new();
        // The first process of the machine and this process are always excluded.
        let mut seen: HashSet<Pid> = self.excluded.iter().copied().chain([Pid::INIT, getpid()]).collect();
        let mut add = |found: &mut Vec<Process>, processes: Vec<Process>| {
            found.extend(processes.into_iter().filter(|one| !one.has_ended() && seen.insert(one.id())));
        };
        for ancestor in &self.ancestors {
            add(&mut found, ancestor.children(&lookup));
        }
        add(&mut found, self.command.iter().chain(&self.outside).cloned().collect());
        let mut next = 0;
        while let Some(parent) = found.get(next).cloned() {
            let children = lookup.children(parent.id());
            // The pid of a parent that has ended may have been reused.
            if !parent.has_ended() {
                add(&mut found, children);
            }
            next += 1;
        }
        found
    }
}

impl Ancestor {
    fn children(self, lookup: &ChildLookup) -> Vec<Process> {
        let id = match self {
            Self::This => getpid(),
            Self::Child(id) | Self::Parent(id) => id,
        };
        let children = lookup.children(id);
        // A parent may have ended, and its pid may have been reused. The children of the first process of the machine, or of a container,
        // are the orphans of all programs.
        let is_ancestor = id != Pid::INIT && (!matches!(self, Self::Parent(_)) || getppid() == Some(id));
        if is_ancestor { children } else { Vec::new() }
    }
}

/// The source of parent-child relations.
enum ChildLookup {
    /// The list of children of each process.
    Lists,
    /// All processes of the machine, read once; empty without `/proc`.
    Table(Vec<Stat>),
}

impl ChildLookup {
    fn read() -> Self {
        #[cfg(test)]
        tests::on_lookup();
        static LISTS: OnceLock<bool> = OnceLock::new();
        let has_lists = || fs::exists(numbers::CHILDREN_OF_THIS_THREAD).unwrap_or(false);
        if *LISTS.get_or_init(has_lists) { Self::Lists } else { Self::table() }
    }

    fn table() -> Self {
        let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = numbers.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        Self::Table(ids.filter_map(Stat::of).collect())
    }

    /// Returns the children of the process `parent`, which must not have been reaped when this returns.
    ///
    /// The list is read twice, and a process that is not in the second one is dropped, because of this race: a child of the first list
    /// ends and is reaped, its pid is given to another process, and that process is opened.
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

/// Makes this process the parent of descendants with parents that have ended, if the system supports it.
pub(super) fn become_subreaper() {
    // It can't fail on a supported kernel. On other systems such processes are not found.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(getpid())).ok();
}

/// Returns the pids of the children of this process, zombies included.
pub(super) fn children() -> Vec<Pid> {
    ChildLookup::read().numbers(getpid())
}

/// Returns the pids of the children of `parent`; none if it is gone.
fn numbers_in_lists(parent: Pid) -> Vec<Pid> {
    let Some(number) = numbers::number_of(parent) else { return Vec::new() };
    // A child belongs to the thread that has started it.
    let threads = fs::read_dir(format!("/proc/{number}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let numbers = |list: String| {
        let numbers = list.split_whitespace().filter_map(|number| Pid::from_raw(number.parse().ok()?));
        numbers.filter_map(numbers::pid_of).collect::<Vec<_>>()
    };
    lists.flat_map(numbers).collect()
}

/// Returns the text for a process that can't be killed.
pub(super) fn unkillable(process: Pid, user: Option<u32>) -> String {
    let user = user.map_or_else(|| "another user".to_owned(), |user| format!("user {user}"));
    format!("process {process} of the command belongs to {user} and can't be killed")
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        process::{Child, Command, Stdio},
    };

    use super::*;

    thread_local! {
        /// The process to check when this thread looks up processes for the first time, and the result: true if it had ended.
        static CHECKED: Cell<Option<Pid>> = const { Cell::new(None) };
        static HAD_ENDED: Cell<Option<bool>> = const { Cell::new(None) };
    }

    /// Called by each lookup.
    pub(super) fn on_lookup() {
        let Some(id) = CHECKED.take() else { return };
        // A process ends a moment after a signal.
        let has_ended = |_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            Process::open(id).is_none_or(|process| process.has_ended())
        };
        HAD_ENDED.set(Some((0..200).any(has_ended)));
    }

    #[test]
    fn the_group_is_killed_before_any_process_is_looked_up() {
        use std::os::unix::process::CommandExt;

        let mut sleeper = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let id = Pid::from_child(&sleeper);
        let mut tree = ProcessTree { group: Some(Group::unreaped(id)), ..ProcessTree::default() };
        CHECKED.set(Some(id));
        tree.kill();
        assert_eq!(HAD_ENDED.get(), Some(true));
        sleeper.wait().unwrap();
    }

    /// Starts a shell with a child that leaves the session, and a grandchild.
    fn process_tree() -> (Child, ProcessTree) {
        let mut command = Command::new("sh");
        command.args(["-c", "setsid sh -c 'sleep 60 & wait' & wait"]).stdout(Stdio::null());
        let child = command.spawn().unwrap();
        let command = Process::open(Pid::from_child(&child));
        (child, ProcessTree { command, ..ProcessTree::default() })
    }

    #[test]
    fn all_descendants_are_found_and_killed() {
        let (mut child, mut tree) = process_tree();
        while tree.find().len() < 3 {
            std::thread::yield_now();
        }
        assert!(tree.refresh().is_empty() && !tree.has_ended());
        assert_eq!(tree.outside.len(), 3);
        // When the shell has ended, the other two are found only because `refresh` has recorded them.
        while !tree.kill().is_empty() {
            child.try_wait().unwrap();
        }
        child.wait().unwrap();
        assert!(tree.has_ended());
    }

    #[test]
    fn the_lists_of_children_and_the_process_table_agree() {
        let (mut child, tree) = process_tree();
        while tree.find().len() < 3 {
            std::thread::yield_now();
        }
        let id = Pid::from_child(&child);
        let ids = |processes: Vec<Process>| processes.iter().map(Process::id).collect::<Vec<_>>();
        let listed = ids(ChildLookup::Lists.children(id));
        assert_eq!(listed.len(), 1);
        assert_eq!(ids(ChildLookup::table().children(id)), listed);
        assert!(ChildLookup::Lists.children(listed[0]).iter().all(|process| process.id() != id));
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
        // A process ends a moment after a signal.
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(10));
            assert!(!Process::open(id).unwrap().has_ended());
        }
        Group::while_member(id, vec![(id, started)]).signal(Signal::KILL);
        sleeper.wait().unwrap();
    }
}
