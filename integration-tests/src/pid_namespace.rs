//! Shell scripts in a new process namespace, in which a script can be the first process and choose process numbers.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

/// Runs the bash script `script` as the first process of a namespace, in `directory` and with `variables`, and returns its output;
/// `None`, with a message, if this user may not create namespaces. A user other than root becomes root in the namespace, and can't
/// change to a third user there.
///
/// # Panics
/// If the script fails.
pub fn run(script: &str, directory: &Path, variables: &[(&str, &str)]) -> Option<String> {
    let unshare = |as_root: &[&str], script: &str| {
        let mut command = Command::new("unshare");
        command.args(as_root).args(["--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", script]);
        command.current_dir(directory).envs(variables.iter().copied()).stdin(Stdio::null());
        command.output().unwrap_or_else(|error| panic!("can't run unshare (package util-linux): {error}"))
    };
    let variants: [&[&str]; 2] = [&[], &["--user", "--map-root-user"]];
    let works =
        |options: &&&[&str]| unshare(options, "echo 100 > /proc/sys/kernel/ns_last_pid").status.success();
    let Some(options) = variants.iter().find(works) else {
        eprintln!("skipped: this user may not create process namespaces and choose process numbers in them");
        return None;
    };
    let Output { status, stdout, stderr } = unshare(options, &format!("{HELPERS}{script}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "the script failed: {status}\n{stdout}\n{stderr}");
    eprintln!("{stderr}");
    Some(stdout.into_owned())
}

/// Functions for the scripts.
///
/// * `wait_for COMMAND…`: repeats it until it succeeds, for half a minute;
/// * `alive PID`: succeeds if the process exists and is not a zombie;
/// * `survives PID`: succeeds if the process is still alive after a fifth of a second, in which a signal takes effect;
/// * `child PID WORD`: the number of the child of a process with the word in its command line;
/// * `sleeper PID`: starts a sleeping process as the leader of a group, with this number if it is free; its number is `$!`.
const HELPERS: &str = r#"
set -u
wait_for() {
    local i
    for i in $(seq 3000); do "$@" && return; sleep 0.01; done
    echo "not within 30 seconds: $*" >&2; exit 1
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
