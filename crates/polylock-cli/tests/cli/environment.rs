//! The environment, stdin and stdout of the command, and the choice of the store.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
};

use crate::support::{Workspace, lines, stderr, stdout};

#[test]
fn the_environment_describes_the_hold() {
    let workspace = Workspace::new();
    let show = "echo $POLYLOCK_NAME $POLYLOCK_MODE $POLYLOCK_BACKEND $POLYLOCK_TTL_MS; echo $POLYLOCK_FENCING_TOKEN; \
                echo $POLYLOCK_OWNER; echo $POLYLOCK_EXPIRES_AT_MS; echo ${POLYLOCK_STORE-none}";
    let output =
        workspace.polylock().args(["run", "--ttl", "7.5", "-s", "a/b", "-c", show]).output().unwrap();
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "a/b PR sqlite 7500");
    assert_eq!(lines[4], "none");
    assert!(lines[2].contains(':') && lines[2].contains('/'), "{text}");
    let expires: u64 = lines[3].parse().unwrap();
    assert!(expires > 1_700_000_000_000, "{text}");
    let first: u64 = lines[1].parse().unwrap();
    let second =
        workspace.polylock().args(["run", "a/b", "-c", "echo $POLYLOCK_FENCING_TOKEN"]).output().unwrap();
    assert!(stdout(&second).trim().parse::<u64>().unwrap() > first);
}

#[test]
fn the_url_is_removed_from_the_environment() {
    let workspace = Workspace::new();
    let mut from_variable = workspace.polylock_without_store();
    from_variable.env("DB", workspace.url()).args(["--store-env", "DB", "run", "x", "-c", "echo ${DB-none}"]);
    assert_eq!(stdout(&from_variable.output().unwrap()), "none\n");
    let mut by_name = workspace.polylock_without_store();
    by_name.env("DB", workspace.url()).args(["-S", "env:DB", "run", "x", "-c", "echo ${DB-none}"]);
    assert_eq!(stdout(&by_name.output().unwrap()), "none\n");
    let kept =
        workspace.polylock().args(["run", "--keep-store-env", "x", "-c", "echo $POLYLOCK_STORE"]).output();
    assert_eq!(stdout(&kept.unwrap()).trim(), workspace.url());
}

#[test]
fn the_store_from_a_file_a_profile_and_a_config_file() {
    let workspace = Workspace::new();
    fs::write(workspace.path("secret"), format!("{}\n", workspace.url())).unwrap();
    let by_file =
        workspace.polylock_without_store().args(["-S", "file:secret", "run", "x", "true"]).output().unwrap();
    assert!(by_file.status.success(), "{}", stderr(&by_file));

    let text = "store = 'sqlite:top.db'\nttl = '20s'\n[profiles.night]\nstore = 'sqlite:night.db'\n";
    fs::write(workspace.path("locks.toml"), text).unwrap();
    let ttl = ["run", "x", "-c", "echo $POLYLOCK_TTL_MS"];
    for (flags, file) in [(&[][..], "top.db"), (&["-p", "night"][..], "night.db")] {
        let output = workspace
            .polylock_without_store()
            .env("POLYLOCK_CONFIG", "locks.toml")
            .args(flags)
            .args(ttl)
            .output()
            .unwrap();
        assert_eq!(stdout(&output), "20000\n", "{}", stderr(&output));
        assert!(workspace.path(file).exists());
    }
    // The same file is found in its default location.
    fs::create_dir_all(workspace.path(".config/polylock")).unwrap();
    fs::rename(workspace.path("locks.toml"), workspace.path(".config/polylock/config.toml")).unwrap();
    assert_eq!(stdout(&workspace.polylock_without_store().args(ttl).output().unwrap()), "20000\n");
    fs::write(workspace.path(".config/polylock/config.toml"), "store = 'memory:'\ntll = 3").unwrap();
    let typo = workspace.polylock_without_store().args(["list"]).output().unwrap();
    let text = stderr(&typo);
    assert!(text.contains("config.toml: tll: unknown key; did you mean ttl?"), "{text}");
    fs::write(workspace.path(".config/polylock/config.toml"), "stroe = 'memory:'").unwrap();
    let typo = workspace.polylock_without_store().args(["list"]).output().unwrap();
    let text = stderr(&typo);
    assert!(text.contains("config.toml: stroe: unknown key; did you mean store?"), "{text}");
}

#[test]
fn a_store_in_memory_causes_a_note() {
    let workspace = Workspace::new();
    let output = workspace
        .polylock_without_store()
        .args(["-S", "memory:", "run", "x", "echo", "mine"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "mine\n");
    assert!(stderr(&output).contains("excludes no other process"), "{}", stderr(&output));
}

#[test]
fn the_default_store_is_a_file_that_only_the_user_can_access() {
    let workspace = Workspace::new();
    for (variable, file) in [(None, ".local/state/polylock"), (Some("state"), "state/polylock")] {
        let mut command = workspace.polylock_without_store();
        if let Some(name) = variable {
            command.env("XDG_STATE_HOME", workspace.path(name));
        }
        let output = command.args(["run", "x", "true"]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(workspace.path(file).join("locks.db").exists());
        assert_eq!(fs::metadata(workspace.path(file)).unwrap().permissions().mode() & 0o777, 0o700);
    }
}

#[test]
fn stdin_and_stdout_belong_to_the_command() {
    let workspace = Workspace::new();
    let mut run = workspace.polylock();
    let mut child = run.args(["run", "-v", "x", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through and through").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(stdout(&output), "through and through");
    assert!(stderr(&output).contains("lock x acquired, token "), "{}", stderr(&output));
}

#[test]
fn a_pipe_ends_with_the_command() {
    let workspace = Workspace::new();
    // `cat` ends only when no process, including the warden, has the pipe open.
    let script = format!("{} run x echo done | cat", env!("CARGO_BIN_EXE_polylock"));
    let output =
        Command::new("sh").args(["-c", &script]).env("POLYLOCK_STORE", workspace.url()).output().unwrap();
    assert_eq!(stdout(&output), "done\n");
}

#[test]
fn a_closed_reader_causes_no_panic() {
    let workspace = Workspace::new();
    for what in ["list", "status x", "completions bash", "man", "--help", "run x echo hello", "run -v x true"]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = workspace.polylock();
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
fn a_nested_run_of_the_same_lock_is_refused_or_reenters_it() {
    let workspace = Workspace::new();
    let polylock = env!("CARGO_BIN_EXE_polylock");
    let nested = |outer: &str, inner: &str| {
        let mut run = workspace.polylock();
        run.args(["run"]).args(outer.split(' ')).args([polylock, "run", "-w", "20"]);
        run.args(inner.split(' ')).output().unwrap()
    };
    let refused = nested("x", "x echo inner");
    assert_eq!(refused.status.code(), Some(64), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("--reentrant"), "{}", stderr(&refused));

    let entered = nested("x", "--reentrant --status-file inner.json x sh -c exit${IFS}3");
    assert_eq!(entered.status.code(), Some(3), "{}", stderr(&entered));
    assert_eq!(lines(&workspace.read("inner.json"))[0]["verdict"], "reentered");
    let weaker = nested("-s x", "--reentrant -x x true");
    assert_eq!(weaker.status.code(), Some(64), "{}", stderr(&weaker));
    assert!(stderr(&weaker).contains("too weak"), "{}", stderr(&weaker));

    let other = nested("x", "y echo inner");
    assert_eq!(stdout(&other), "inner\n", "{}", stderr(&other));
    // This also applies through a run of another lock.
    let deep = nested("x", &format!("y {polylock} run x true"));
    assert_eq!(deep.status.code(), Some(64), "{}", stderr(&deep));
    assert_eq!(workspace.status("x")["state"], "free");
}

/// Runs `polylock` inside a run of `outer`, both with a home that contains the default store.
fn run_nested(
    workspace: &Workspace,
    outer: &[&str],
    variables: &[(&str, &str)],
    inner: &str,
) -> std::process::Output {
    let mut run = workspace.polylock_without_store();
    run.args(outer).envs(variables.iter().copied()).args(["sh", "-c"]);
    run.arg(inner.replace("polylock ", concat!(env!("CARGO_BIN_EXE_polylock"), " "))).output().unwrap()
}

#[test]
fn a_nested_run_uses_the_same_store() {
    let workspace = Workspace::new();
    // A path that looks like a user and a password is not passed on itself; its source is.
    let secret = format!("sqlite://{}/me:kanarienvogel@/locks.db", workspace.directory.path().display());
    fs::write(workspace.path("url"), &secret).unwrap();
    let config =
        format!("store = '{}'\n[profiles.a]\nttl = '20s'\n[profiles.b]\nstore = '{secret}'", workspace.url());
    fs::write(workspace.path("locks.toml"), config).unwrap();
    fs::create_dir(workspace.path("elsewhere")).unwrap();
    let url = workspace.url();
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
        // In another directory a relative path names another file.
        let refused = run_nested(&workspace, outer, variables, "cd elsewhere; polylock run -n x true");
        assert_eq!(refused.status.code(), Some(64), "{outer:?}: {}", stderr(&refused));
        assert!(stderr(&refused).contains("would wait for itself"), "{outer:?}: {}", stderr(&refused));
        let same = run_nested(&workspace, outer, variables, "cd elsewhere; polylock status --output json x");
        assert!(stdout(&same).contains("\"state\":\"held\""), "{outer:?}: {}", stdout(&same));
    }
    assert!(!workspace.path(".local").exists(), "the default store was made");
    // Another store can be named.
    let other = run_nested(
        &workspace,
        &["-S", &url, "run", "x"],
        &[],
        "polylock -S sqlite:other.db run -n x echo in",
    );
    assert_eq!(stdout(&other), "in\n");
}

#[test]
fn a_nested_run_must_name_a_store_with_a_password() {
    let workspace = Workspace::new();
    let secret = format!("sqlite://me:kanarienvogel@{}", workspace.path("locks.db").display());
    let run = ["-S", secret.as_str(), "run", "x"];
    fs::create_dir_all(
        workspace.path("me:kanarienvogel@").join(workspace.directory.path().strip_prefix("/").unwrap()),
    )
    .unwrap();
    let refused = run_nested(&workspace, &run, &[], "env; polylock run -n x true");
    assert_eq!(refused.status.code(), Some(78), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("names no store"), "{}", stderr(&refused));
    assert!(!stdout(&refused).contains("kanarienvogel"), "{}", stdout(&refused));
    assert!(!stderr(&refused).contains("kanarienvogel"), "{}", stderr(&refused));
    // A stale reference of a run further out is not passed on.
    let deep = format!("polylock -S {} run y polylock run -n z true", workspace.url());
    assert_eq!(run_nested(&workspace, &run, &[], &deep).status.code(), Some(0));
    let deep = format!("polylock -S '{secret}' run y polylock run -n z true");
    assert_eq!(
        run_nested(&workspace, &["-S", &workspace.url(), "run", "x"], &[], &deep).status.code(),
        Some(78)
    );
}

#[test]
fn an_empty_or_undecodable_store_variable_is_an_error() {
    use std::os::unix::ffi::OsStrExt;
    let workspace = Workspace::new();
    let not_utf8 = std::ffi::OsStr::from_bytes(b"redis://h\xff");
    for (value, expected) in
        [("".as_ref(), "POLYLOCK_STORE is empty"), (not_utf8, "POLYLOCK_STORE is not valid UTF-8")]
    {
        for arguments in ["run x touch ran", "status x"] {
            let output = workspace
                .polylock_without_store()
                .env("POLYLOCK_STORE", value)
                .args(arguments.split(' '))
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
            assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        }
        let named = workspace
            .polylock_without_store()
            .env("DB", value)
            .args(["--store-env", "DB", "list"])
            .output()
            .unwrap();
        assert_eq!(named.status.code(), Some(78), "{}", stderr(&named));
        // An unused variable has no effect.
        let other = workspace
            .polylock_without_store()
            .env("POLYLOCK_STORE", value)
            .args(["-S", "memory:", "list"])
            .output()
            .unwrap();
        assert_eq!(other.status.code(), Some(0), "{}", stderr(&other));
    }
    assert!(!workspace.path("ran").exists() && !workspace.path(".local").exists());
}

#[test]
fn run_and_status_show_the_store() {
    let workspace = Workspace::new();
    let path = workspace.path("locks.db").display().to_string();
    assert!(stderr(&workspace.call("run -v x true")).contains(&format!("in sqlite://{path}")));
    assert!(stdout(&workspace.call("status x")).contains(&format!("  store: sqlite://{path}\n")));
    assert_eq!(workspace.status("x")["store"], format!("sqlite://{path}"));
    let holder = workspace.start("x", "echo > held; exec sleep 60");
    workspace.wait_for_file("held");
    let waited = stderr(&workspace.call("run -w 4 x true"));
    assert!(waited.contains("waiting for x") && waited.contains(&format!("in sqlite://{path}")), "{waited}");
    drop(holder);
    for relative in ["sqlite:l.db", "sqlite://l.db"] {
        let output = workspace
            .polylock_without_store()
            .args(["-S", relative, "run", "-v", "x", "true"])
            .output()
            .unwrap();
        let text = stderr(&output);
        assert!(text.contains("relative to the working directory"), "{text}");
        assert!(text.contains(&format!("in sqlite://{}", workspace.path("l.db").display())), "{text}");
        let quiet = workspace
            .polylock_without_store()
            .args(["-S", relative, "-q", "run", "x", "true"])
            .output()
            .unwrap();
        assert_eq!(stderr(&quiet), "");
    }
}

#[test]
fn two_nested_runs_exclude_each_other() {
    let workspace = Workspace::new();
    let polylock = env!("CARGO_BIN_EXE_polylock");
    let both =
        format!("{polylock} run y sh -c 'echo a; echo a' & {polylock} run y sh -c 'echo b; echo b'; wait");
    let output = workspace.polylock().args(["run", "x", "-c", &both]).output().unwrap();
    assert!(["a\na\nb\nb\n", "b\nb\na\na\n"].contains(&stdout(&output).as_str()), "{output:?}");
}
