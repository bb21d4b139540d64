//! The numbers by which `/proc` names processes.
//!
//! They are the pids of the PID namespace that `/proc` was mounted for. A namespace that was made without a `/proc` of its own (`unshare
//! --pid --fork`, `nsenter --pid`, `bwrap --unshare-pid`) has that of a namespace around it. There a process has another number in `/proc`
//! than in system calls, and its pid is the number of a process outside. So nothing is read from `/proc` by a pid, but by the number that
//! the kernel shows for it.

use std::fs;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;

use rustix::process::Pid;
#[cfg(target_os = "linux")]
use rustix::process::{PidfdFlags, getpid, pidfd_open};

/// The text for a system on which the processes of a command can't be found.
#[cfg(target_os = "linux")]
const NO_PROC: &str = "/proc does not show the processes of this PID namespace, so polylock could not stop all processes of the command; mount it: \
     `mount -t proc proc /proc`, `unshare --mount-proc` or `bwrap --proc /proc`";
/// The text for a process with children in another namespace.
#[cfg(target_os = "linux")]
const ELSEWHERE: &str = "the processes that polylock starts would be in another PID namespace than polylock itself; with `unshare --pid`, \
                         also write `--fork`";
/// The list of the children of a thread, where the kernel has such lists.
pub(super) const CHILDREN_OF_THIS_THREAD: &str = "/proc/thread-self/children";

/// Returns the number of namespaces from that of `/proc` to that of this process.
#[cfg(target_os = "linux")]
fn depth() -> usize {
    static DEPTH: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *DEPTH.get_or_init(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        // A kernel without namespaces has no such line.
        field(&status, "NSpid:").map_or(0, |pids| pids.split_whitespace().count().saturating_sub(1))
    })
}

#[cfg(not(target_os = "linux"))]
fn depth() -> usize {
    0
}

/// Returns the number of the process `id` in `/proc`; `None` if it is gone.
pub(super) fn number_of(id: Pid) -> Option<Pid> {
    if differ() { number_by_pidfd(id) } else { Some(id) }
}

#[cfg(target_os = "linux")]
fn number_by_pidfd(id: Pid) -> Option<Pid> {
    let process = pidfd_open(id, PidfdFlags::empty()).ok()?;
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).ok()?;
    pid(field(&text, "Pid:")?)
}

#[cfg(not(target_os = "linux"))]
fn number_by_pidfd(_: Pid) -> Option<Pid> {
    None
}

/// Returns the pid of the process with this number in `/proc`; `None` if it is gone, or outside of this namespace.
///
/// It is right for a descendant of this process, which is in the namespace of this process or in one that is inside of it.
pub(super) fn pid_of(number: Pid) -> Option<Pid> {
    if differ() { ids_of(number)?.pid } else { Some(number) }
}

/// The ids of a process that has other numbers in `/proc`.
pub(super) struct Ids {
    /// `None` if it is outside of this namespace, as the other two may be.
    pub(super) pid: Option<Pid>,
    pub(super) group: Option<Pid>,
    pub(super) session: Option<Pid>,
}

/// Returns true if processes have other numbers in `/proc` than in system calls.
pub(super) fn differ() -> bool {
    depth() > 0
}

/// Returns the ids of the process with this number in `/proc`; `None` if it is gone.
pub(super) fn ids_of(number: Pid) -> Option<Ids> {
    let status = fs::read_to_string(format!("/proc/{number}/status")).ok()?;
    let here = |name| pid(field(&status, name)?.split_whitespace().nth(depth())?);
    Some(Ids { pid: here("NSpid:"), group: here("NSpgid:"), session: here("NSsid:") })
}

/// Checks that the processes of a command can be found: that `/proc` shows this process, and as itself.
///
/// # Errors
/// A text with the remedy. Systems other than Linux have no `/proc`, which is a documented limit.
pub(in crate::run) fn check_proc() -> Result<(), &'static str> {
    #[cfg(target_os = "linux")]
    {
        if !shows_this_process() {
            return Err(NO_PROC);
        }
        if !starts_processes_here() {
            return Err(ELSEWHERE);
        }
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn shows_this_process() -> bool {
    let this = fs::read_link("/proc/self").ok().and_then(|number| pid(number.to_str()?));
    this.is_some_and(|number| {
        // All processes of the machine are never read in another namespace: see `ChildLookup`.
        let has_lists = || fs::exists(CHILDREN_OF_THIS_THREAD).unwrap_or(false);
        number_of(getpid()) == Some(number) && pid_of(number) == Some(getpid()) && (!differ() || has_lists())
    })
}

/// Returns false if the next process that this one starts would be the first process of another namespace.
#[cfg(target_os = "linux")]
fn starts_processes_here() -> bool {
    let [here, children] = ["/proc/self/ns/pid", "/proc/self/ns/pid_for_children"];
    // The second link can't be read before that namespace has a process. Linux 4.11 does not have it.
    fs::symlink_metadata(children).is_err() || fs::read_link(here).ok() == fs::read_link(children).ok()
}

/// Returns the value of the line that begins with `name`.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(name))
}

/// Parses a number; 0 and -1 stand for a process that is outside or gone.
fn pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.trim().parse().ok().filter(|number| *number > 0)?)
}
