//! What the command gets: its environment, stdin and stdout; and where the store comes from.

mod support;

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
};

use support::{Place, stderr, stdout};

#[test]
fn the_command_is_told_about_its_hold() {
    let place = Place::new();
    let show = "echo $POLYLOCK_NAME $POLYLOCK_MODE $POLYLOCK_BACKEND $POLYLOCK_TTL_MS; echo $POLYLOCK_FENCING_TOKEN; \
                echo $POLYLOCK_OWNER; echo $POLYLOCK_EXPIRES_AT_MS; echo ${POLYLOCK_STORE-none}";
    let output = place.polylock().args(["run", "--ttl", "7.5", "-s", "a/b", "-c", show]).output().unwrap();
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "a/b PR sqlite 7500");
    assert_eq!(lines[4], "none");
    assert!(lines[2].contains(':') && lines[2].contains('/'), "{text}");
    let expires: u64 = lines[3].parse().unwrap();
    assert!(expires > 1_700_000_000_000, "{text}");
    let first: u64 = lines[1].parse().unwrap();
    let second =
        place.polylock().args(["run", "a/b", "-c", "echo $POLYLOCK_FENCING_TOKEN"]).output().unwrap();
    assert!(stdout(&second).trim().parse::<u64>().unwrap() > first);
}

#[test]
fn the_url_stays_out_of_the_commands_environment() {
    let place = Place::new();
    let mut from_variable = place.bare();
    from_variable.env("DB", place.url()).args(["--store-env", "DB", "run", "x", "-c", "echo ${DB-none}"]);
    assert_eq!(stdout(&from_variable.output().unwrap()), "none\n");
    let mut by_name = place.bare();
    by_name.env("DB", place.url()).args(["-S", "env:DB", "run", "x", "-c", "echo ${DB-none}"]);
    assert_eq!(stdout(&by_name.output().unwrap()), "none\n");
    let kept = place.polylock().args(["run", "--keep-store-env", "x", "-c", "echo $POLYLOCK_STORE"]).output();
    assert_eq!(stdout(&kept.unwrap()).trim(), place.url());
}

#[test]
fn the_store_from_a_file_a_profile_and_a_config_file() {
    let place = Place::new();
    fs::write(place.path("secret"), format!("{}\n", place.url())).unwrap();
    let by_file = place.bare().args(["-S", "file:secret", "run", "x", "true"]).output().unwrap();
    assert!(by_file.status.success(), "{}", stderr(&by_file));

    let text = "store = 'sqlite:top.db'\nttl = '20s'\n[profiles.night]\nstore = 'sqlite:night.db'\n";
    fs::write(place.path("locks.toml"), text).unwrap();
    let ttl = ["run", "x", "-c", "echo $POLYLOCK_TTL_MS"];
    for (flags, file) in [(&[][..], "top.db"), (&["-p", "night"][..], "night.db")] {
        let output =
            place.bare().env("POLYLOCK_CONFIG", "locks.toml").args(flags).args(ttl).output().unwrap();
        assert_eq!(stdout(&output), "20000\n", "{}", stderr(&output));
        assert!(place.path(file).exists());
    }
    // The same file where it is looked for by itself.
    fs::create_dir_all(place.path(".config/polylock")).unwrap();
    fs::rename(place.path("locks.toml"), place.path(".config/polylock/config.toml")).unwrap();
    assert_eq!(stdout(&place.bare().args(ttl).output().unwrap()), "20000\n");
    fs::write(place.path(".config/polylock/config.toml"), "store = 'memory:'\ntll = 3").unwrap();
    let typo = place.bare().args(["list"]).output().unwrap();
    assert!(stderr(&typo).contains("did you mean polylock.ttl?"), "{}", stderr(&typo));
}

#[test]
fn a_store_in_memory_is_run_with_a_warning() {
    let place = Place::new();
    let output = place.bare().args(["-S", "memory:", "run", "x", "echo", "mine"]).output().unwrap();
    assert_eq!(stdout(&output), "mine\n");
    assert!(stderr(&output).contains("keeps nobody out"), "{}", stderr(&output));
}

#[test]
fn the_default_is_a_file_in_the_state_directory_for_the_user_alone() {
    let place = Place::new();
    for (variable, file) in [(None, ".local/state/polylock"), (Some("state"), "state/polylock")] {
        let mut command = place.bare();
        if let Some(name) = variable {
            command.env("XDG_STATE_HOME", place.path(name));
        }
        let output = command.args(["run", "x", "true"]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(place.path(file).join("locks.db").exists());
        assert_eq!(fs::metadata(place.path(file)).unwrap().permissions().mode() & 0o777, 0o700);
    }
}

#[test]
fn stdin_and_stdout_belong_to_the_command() {
    let place = Place::new();
    let mut run = place.polylock();
    let mut child = run.args(["run", "-v", "x", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through and through").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(stdout(&output), "through and through");
    assert!(stderr(&output).contains("lock x acquired, token "), "{}", stderr(&output));
}

#[test]
fn a_pipe_ends_with_the_command() {
    let place = Place::new();
    // `cat` ends only when nobody, not even the warden, holds the pipe any more.
    let script = format!("{} run x echo done | cat", env!("CARGO_BIN_EXE_polylock"));
    let output =
        Command::new("sh").args(["-c", &script]).env("POLYLOCK_STORE", place.url()).output().unwrap();
    assert_eq!(stdout(&output), "done\n");
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let place = Place::new();
    for what in ["list", "status x", "completions bash", "man", "--help", "run x echo hello", "run -v x true"]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = place.polylock();
        command.args(what.split(' ')).stdout(writer);
        let output = command.output().unwrap();
        assert!(!stderr(&output).contains("panicked"), "{what}: {}", stderr(&output));
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let status = command.stdout(Stdio::null()).stderr(writer).status().unwrap();
        assert_eq!(status.code(), Some(0), "{what} without stderr");
    }
}

#[test]
fn a_run_inside_a_run_of_the_same_lock_is_refused_or_enters_it() {
    let place = Place::new();
    let polylock = env!("CARGO_BIN_EXE_polylock");
    let nested = |outer: &str, inner: &str| {
        let mut run = place.polylock();
        run.args(["run", "--keep-store-env"]).args(outer.split(' ')).args([polylock, "run", "-w", "20"]);
        run.args(inner.split(' ')).output().unwrap()
    };
    let refused = nested("x", "x echo inner");
    assert_eq!(refused.status.code(), Some(64), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("--reentrant"), "{}", stderr(&refused));

    let entered = nested("x", "--reentrant --status-file inner.json x sh -c exit${IFS}3");
    assert_eq!(entered.status.code(), Some(3), "{}", stderr(&entered));
    assert_eq!(support::lines(&place.read("inner.json"))[0]["verdict"], "reentered");
    let weaker = nested("-s x", "--reentrant -x x true");
    assert_eq!(weaker.status.code(), Some(64), "{}", stderr(&weaker));
    assert!(stderr(&weaker).contains("too weak"), "{}", stderr(&weaker));

    let other = nested("x", "y echo inner");
    assert_eq!(stdout(&other), "inner\n", "{}", stderr(&other));
    // Through a run of another lock, too.
    let deep = nested("x", &format!("--keep-store-env y {polylock} run x true"));
    assert_eq!(deep.status.code(), Some(64), "{}", stderr(&deep));
    assert_eq!(place.status("x")["state"], "free");
}

#[test]
fn two_runs_beside_each_other_inside_a_run_wait_for_each_other() {
    let place = Place::new();
    let polylock = env!("CARGO_BIN_EXE_polylock");
    let both =
        format!("{polylock} run y sh -c 'echo a; echo a' & {polylock} run y sh -c 'echo b; echo b'; wait");
    let output = place.polylock().args(["run", "--keep-store-env", "x", "-c", &both]).output().unwrap();
    assert!(["a\na\nb\nb\n", "b\nb\na\na\n"].contains(&stdout(&output).as_str()), "{output:?}");
}
