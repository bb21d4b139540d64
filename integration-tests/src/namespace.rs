//! Shell scripts in a process namespace of their own, where process numbers can be chosen and a first process can be had.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

/// Runs the bash script `script` as the first process of a namespace, in `directory` and with `variables`: what it writes, or
/// `None`, with a message, if this user may not make namespaces. A user other than root becomes root in the namespace, and can't
/// change to a third user there.
///
/// # Panics
/// If the script fails.
pub fn run(script: &str, directory: &Path, variables: &[(&str, &str)]) -> Option<String> {
    let unshare = |as_root: &[&str], script: &str| {
        let mut command = Command::new("unshare");
        command.args(as_root).args(["--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", script]);
        command.current_dir(directory).envs(variables.iter().copied()).stdin(Stdio::null());
        command.output().unwrap_or_else(|error| panic!("unshare (of util-linux, in every Debian): {error}"))
    };
    let ways: [&[&str]; 2] = [&[], &["--user", "--map-root-user"]];
    let works = |way: &&&[&str]| unshare(way, "echo 100 > /proc/sys/kernel/ns_last_pid").status.success();
    let Some(way) = ways.iter().find(works) else {
        eprintln!("skipped: this user may not make process namespaces and choose process numbers in them");
        return None;
    };
    let Output { status, stdout, stderr } = unshare(way, &format!("{HELPERS}{script}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "the script failed: {status}\n{stdout}\n{stderr}");
    eprintln!("{stderr}");
    Some(stdout.into_owned())
}

/// Functions for the scripts.
///
/// * `wait_for COMMAND…`: runs it again and again until it succeeds, for half a minute;
/// * `alive PID`: whether a process runs, that is, is neither gone nor a zombie;
/// * `survives PID`: whether it still runs a fifth of a second later, when a signal that was sent has had its effect;
/// * `child PID WORD`: the number of the child of a process whose command line holds the word;
/// * `sleeper PID`: starts a sleeping process that leads a group, with this number if it is free; its number is `$!`.
const HELPERS: &str = r#"
set -u
wait_for() {
    local i
    for i in $(seq 3000); do "$@" && return; sleep 0.01; done
    echo "in vain: $*" >&2; exit 1
}
alive() { grep -q '^State:.[^ZX]' "/proc/$1/status" 2>/dev/null; }
dead() { ! alive "$1"; }
survives() {
    local i
    for i in $(seq 20); do alive "$1" || return 1; sleep 0.01; done
}
child() {
    local pid
    for pid in $(cat "/proc/$1/task/$1/children"); do
        grep -qz -- "^$2" "/proc/$pid/cmdline" 2>/dev/null && echo "$pid" && return
    done
    return 1
}
sleeper() {
    echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid
    setsid sleep 3600 &
}
"#;
