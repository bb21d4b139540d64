//! What the command gets: its environment, stdin and stdout; and where the store comes from.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

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
    let text = stderr(&typo);
    assert!(text.contains("config.toml: tll: unknown key; did you mean ttl?"), "{text}");
    fs::write(place.path(".config/polylock/config.toml"), "stroe = 'memory:'").unwrap();
    let typo = place.bare().args(["list"]).output().unwrap();
    let text = stderr(&typo);
    assert!(text.contains("config.toml: stroe: unknown key; did you mean store?"), "{text}");
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
        run.args(["run"]).args(outer.split(' ')).args([polylock, "run", "-w", "20"]);
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
    let deep = nested("x", &format!("y {polylock} run x true"));
    assert_eq!(deep.status.code(), Some(64), "{}", stderr(&deep));
    assert_eq!(place.status("x")["state"], "free");
}

/// `polylock` inside a run of `outer`, both with a home in which the default store is.
fn inside(place: &Place, outer: &[&str], variables: &[(&str, &str)], inner: &str) -> std::process::Output {
    let mut run = place.bare();
    run.args(outer).envs(variables.iter().copied()).args(["sh", "-c"]);
    run.arg(inner.replace("polylock", env!("CARGO_BIN_EXE_polylock"))).output().unwrap()
}

#[test]
fn a_run_inside_a_run_uses_the_same_store() {
    let place = Place::new();
    // A path that looks like a user and a password is not passed on itself, but where it was found.
    let secret = format!("sqlite://{}/me:kanarienvogel@/locks.db", place.directory.path().display());
    fs::write(place.path("url"), &secret).unwrap();
    let config =
        format!("store = '{}'\n[profiles.a]\nttl = '20s'\n[profiles.b]\nstore = '{secret}'", place.url());
    fs::write(place.path("locks.toml"), config).unwrap();
    fs::create_dir(place.path("elsewhere")).unwrap();
    let url = place.url();
    for (outer, variables) in [
        (&["run", "x"][..], &[("POLYLOCK_STORE", url.as_str())][..]),
        (&["-S", &url, "run", "x"], &[]),
        (&["-S", "sqlite:locks.db", "run", "x"], &[]),
        (&["-S", "file:url", "run", "x"], &[]),
        (&["--store-env", "DB", "run", "x"], &[("DB", &url)]),
        (&["--config", "locks.toml", "run", "x"], &[]),
        (&["--config", "locks.toml", "-p", "a", "run", "x"], &[]),
        (&["--config", "locks.toml", "-p", "b", "run", "x"], &[]),
    ] {
        // Another directory, where a relative path leads elsewhere.
        let refused = inside(&place, outer, variables, "cd elsewhere; polylock run -n x true");
        assert_eq!(refused.status.code(), Some(64), "{outer:?}: {}", stderr(&refused));
        assert!(stderr(&refused).contains("would wait for itself"), "{outer:?}: {}", stderr(&refused));
        let same = inside(&place, outer, variables, "cd elsewhere; polylock status --output json x");
        assert!(stdout(&same).contains("\"state\":\"held\""), "{outer:?}: {}", stdout(&same));
    }
    assert!(!place.path(".local").exists(), "the default store was made");
    // Another store can be named.
    let other =
        inside(&place, &["-S", &url, "run", "x"], &[], "polylock -S sqlite:other.db run -n x echo in");
    assert_eq!(stdout(&other), "in\n");
}

#[test]
fn a_run_inside_a_run_whose_url_holds_a_password_must_name_its_store() {
    let place = Place::new();
    let secret = format!("sqlite://me:kanarienvogel@{}", place.path("locks.db").display());
    let run = ["-S", secret.as_str(), "run", "x"];
    fs::create_dir_all(
        place.path("me:kanarienvogel@").join(place.directory.path().strip_prefix("/").unwrap()),
    )
    .unwrap();
    let refused = inside(&place, &run, &[], "env; polylock run -n x true");
    assert_eq!(refused.status.code(), Some(78), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("names no store"), "{}", stderr(&refused));
    assert!(!stdout(&refused).contains("kanarienvogel"), "{}", stdout(&refused));
    assert!(!stderr(&refused).contains("kanarienvogel"), "{}", stderr(&refused));
    // A stale hint of a run further out is not passed on.
    let deep = format!("polylock -S {} run y polylock run -n z true", place.url());
    assert_eq!(inside(&place, &run, &[], &deep).status.code(), Some(0));
    let deep = format!("polylock -S '{secret}' run y polylock run -n z true");
    assert_eq!(inside(&place, &["-S", &place.url(), "run", "x"], &[], &deep).status.code(), Some(78));
}

#[test]
fn a_variable_that_is_empty_or_no_text_names_no_store() {
    use std::os::unix::ffi::OsStrExt;
    let place = Place::new();
    let odd = std::ffi::OsStr::from_bytes(b"redis://h\xff");
    for (value, says) in [("".as_ref(), "POLYLOCK_STORE is empty"), (odd, "POLYLOCK_STORE is no UTF-8")] {
        for arguments in ["run x touch ran", "status x"] {
            let output =
                place.bare().env("POLYLOCK_STORE", value).args(arguments.split(' ')).output().unwrap();
            assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
            assert!(stderr(&output).contains(says), "{}", stderr(&output));
        }
        let named = place.bare().env("DB", value).args(["--store-env", "DB", "list"]).output().unwrap();
        assert_eq!(named.status.code(), Some(78), "{}", stderr(&named));
        // One that is not asked does not matter.
        let other =
            place.bare().env("POLYLOCK_STORE", value).args(["-S", "memory:", "list"]).output().unwrap();
        assert_eq!(other.status.code(), Some(0), "{}", stderr(&other));
    }
    assert!(!place.path("ran").exists() && !place.path(".local").exists());
}

#[test]
fn the_store_is_named() {
    let place = Place::new();
    let path = place.path("locks.db").display().to_string();
    assert!(stderr(&place.call("run -v x true")).contains(&format!("in sqlite://{path}")));
    assert!(stdout(&place.call("status x")).contains(&format!("  store: sqlite://{path}\n")));
    assert_eq!(place.status("x")["store"], format!("sqlite://{path}"));
    let holder = place.start("x", "echo > held; exec sleep 60");
    place.wait_for_file("held");
    let waited = stderr(&place.call("run -w 1.2 x true"));
    assert!(waited.contains("waiting for x") && waited.contains(&format!("in sqlite://{path}")), "{waited}");
    drop(holder);
    for relative in ["sqlite:l.db", "sqlite://l.db"] {
        let output = place.bare().args(["-S", relative, "run", "-v", "x", "true"]).output().unwrap();
        let text = stderr(&output);
        assert!(text.contains("relative to the working directory"), "{text}");
        assert!(text.contains(&format!("in sqlite://{}", place.path("l.db").display())), "{text}");
        let quiet = place.bare().args(["-S", relative, "-q", "run", "x", "true"]).output().unwrap();
        assert_eq!(stderr(&quiet), "");
    }
}

#[test]
fn two_runs_beside_each_other_inside_a_run_wait_for_each_other() {
    let place = Place::new();
    let polylock = env!("CARGO_BIN_EXE_polylock");
    let both =
        format!("{polylock} run y sh -c 'echo a; echo a' & {polylock} run y sh -c 'echo b; echo b'; wait");
    let output = place.polylock().args(["run", "x", "-c", &both]).output().unwrap();
    assert!(["a\na\nb\nb\n", "b\nb\na\na\n"].contains(&stdout(&output).as_str()), "{output:?}");
}
