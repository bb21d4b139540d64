//! The output as text and as JSON.

use std::{fs, os::fd::AsFd, process::Command};

use rustix::io::{FdFlags, fcntl_setfd};
use serde_json::Value;
use sqlx::Connection;

use crate::support::{Running, Workspace, lines, stderr, stdout};

const KEYS: [&str; 10] = [
    "ts",
    "event",
    "name",
    "mode",
    "owner",
    "label",
    "fencing_token",
    "expires_in_ms",
    "position",
    "backend",
];

fn events(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["event"].as_str().unwrap()).collect()
}

#[test]
fn the_status_file_has_all_events_of_a_run() {
    let workspace = Workspace::new();
    fs::write(workspace.path("status"), "from the last time\n").unwrap();
    let script = "until grep -q renewed status; do sleep 0.02; done; exit 75";
    let run = workspace.start("--status-file status --label job --ttl 3s --grace 200ms x", script);
    assert_eq!(run.code(), Some(75));
    let lines = lines(&workspace.read("status"));
    let events = events(&lines);
    assert_eq!((events[0], events[1]), ("acquired", "renewed"));
    assert_eq!(events[events.len() - 2..], ["released", "verdict"]);
    for line in &lines {
        assert!(KEYS.iter().all(|key| line.get(key).is_some()), "{line}");
        assert_eq!(
            (&line["name"], &line["label"], &line["backend"]),
            (&"x".into(), &"job".into(), &"sqlite".into())
        );
        assert!(line["fencing_token"].as_u64().is_some(), "{line}");
    }
    assert!(lines[1]["expires_in_ms"].as_u64().unwrap() > 0);
    // This 75 is the command's own.
    let verdict = &lines[lines.len() - 1];
    assert_eq!((verdict["verdict"].as_str(), verdict["exit_code"].as_u64()), (Some("command"), Some(75)));
}

#[test]
fn the_queue_position_and_the_verdict_of_a_wait_that_times_out() {
    let workspace = Workspace::new();
    let holder = workspace.start("x", "echo > held; exec sleep 60");
    workspace.wait_for_file("held");
    let waiter = workspace.start("-w 4 --status-file status x", "true");
    assert_eq!(waiter.code(), Some(75));
    let lines = lines(&workspace.read("status"));
    assert_eq!(events(&lines), ["queued", "verdict"]);
    assert_eq!(lines[0]["position"], 1);
    assert_eq!(lines[1]["verdict"], "busy");
    drop(holder);
}

#[test]
fn the_status_descriptor() {
    let workspace = Workspace::new();
    let (mut reader, writer) = std::io::pipe().unwrap();
    // The descriptor is inherited with its number.
    fcntl_setfd(writer.as_fd(), FdFlags::empty()).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&writer).to_string();
    let output = workspace.polylock().args(["run", "--status-fd", &number, "x", "true"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    drop(writer);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
    assert_eq!(events(&lines(&text)), ["acquired", "released", "verdict"]);
}

#[test]
fn json_on_stderr_in_place_of_text() {
    let workspace = Workspace::new();
    let output = workspace.call("run --output json x echo mine");
    assert_eq!(stdout(&output), "mine\n");
    assert_eq!(events(&lines(&stderr(&output))), ["acquired", "released", "verdict"]);
    let failed = workspace.call("run --output jsonl x surely-no-such-command");
    let text = lines(&stderr(&failed));
    assert_eq!(text[text.len() - 1]["event"], "error");
    assert_eq!(text[text.len() - 1]["exit_code"], 127);
}

#[test]
fn status_and_list_show_holders_and_waiters() {
    let workspace = Workspace::new();
    let holder = workspace.start("--label nightly app/x", "echo > held; exec sleep 60");
    workspace.wait_for_file("held");
    let waiter = workspace.start("-s app/x", "true");
    workspace.wait_for_waiters("app/x", 1);

    let text = stdout(&workspace.call("status app/x"));
    assert!(text.starts_with("app/x: held\n  held by "), "{text}");
    assert!(text.contains("(nightly), token ") && text.contains("\n  1st in line: "), "{text}");
    let status = workspace.status("app/x");
    assert_eq!((&status["state"], &status["backend"]), (&"held".into(), &"sqlite".into()));
    let entry = &status["holders"][0];
    assert_eq!((&entry["mode"], &entry["label"]), (&"EX".into(), &"nightly".into()));
    assert!(entry["fencing_token"].as_u64().unwrap() > 0 && entry["expires_in_ms"].as_u64().unwrap() > 0);
    assert!(entry["age_ms"].as_u64().is_some());
    assert_eq!((&status["waiters"][0]["mode"], &status["waiters"][0]["position"]), (&"PR".into(), &1.into()));

    for (prefix, number) in [("", 1), ("app/", 1), ("other", 0)] {
        let document: Value = serde_json::from_str(&stdout(&list(&workspace, "json", prefix))).unwrap();
        assert_eq!(document.as_array().unwrap().len(), number, "{prefix:?}");
        assert_eq!(lines(&stdout(&list(&workspace, "jsonl", prefix))).len(), number, "{prefix:?}");
    }
    let broken = workspace.call("break --yes --reason stuck --output jsonl app/x");
    let events = lines(&stdout(&broken));
    assert_eq!((&events[0]["event"], &events[0]["reason"]), (&"broken".into(), &"stuck".into()));
    assert!(events[0]["forced"] == false && events[0]["by"].as_str().unwrap().contains('@'), "{}", events[0]);
    assert!(KEYS.iter().all(|key| events[0].get(key).is_some()), "{}", events[0]);
    assert_eq!(waiter.code(), Some(0));
    assert!(
        stdout(&workspace.call("status never/seen")).starts_with("never/seen: free\n  store: sqlite:///")
    );
    drop(holder);
}

#[test]
fn a_run_without_a_label_shows_its_user_and_program() {
    let workspace = Workspace::new();
    let mut run = workspace.polylock();
    run.env("LOGNAME", "deploy").args(["run", "x", "/bin/sh", "-c", "echo > held; exec sleep 60", "secret"]);
    let run = Running::spawn(run);
    workspace.wait_for_file("held");
    assert_eq!(workspace.status("x")["holders"][0]["label"], "deploy: sh");
    drop(run);
}

fn list(workspace: &Workspace, format: &str, prefix: &str) -> std::process::Output {
    workspace.polylock().args(["list", "--output", format, prefix]).output().unwrap()
}

#[test]
fn a_lock_name_cannot_forge_a_line() {
    let workspace = Workspace::new();
    let output = workspace.polylock().args(["status", "a\nb\u{1b}[31m"]).output().unwrap();
    assert!(stdout(&output).starts_with("a\\nb\\u{1b}[31m: free\n  store: "), "{}", stdout(&output));
}

/// Other programs write to the store, too.
#[tokio::test]
async fn an_owner_a_label_or_a_reason_in_the_store_cannot_forge_a_line() {
    let workspace = Workspace::new();
    // No renewal finds the notice before the end of the test.
    let holder = workspace.start("--ttl 10m x", "echo > held; exec sleep 60");
    workspace.wait_for_file("held");
    let evil = "evil\r\nk2: free\u{1b}[2J\u{202e}\u{2028}";
    let mut store = sqlx::SqliteConnection::connect(&workspace.url()).await.unwrap();
    let waiter = "INSERT INTO polylock_waiters (name, request, mode, owner, label, since, expires_at) \
                  SELECT name, randomblob(16), mode, ?, ?, since, expires_at + 20000000 FROM polylock_holds";
    let mark = "UPDATE polylock_holds SET owner = ?, label = ?, expires_at = expires_at + 20000000";
    for statement in [waiter, mark] {
        sqlx::query(sqlx::AssertSqlSafe(statement)).bind(evil).bind(evil).execute(&mut store).await.unwrap();
    }
    let notice = sqlx::query("UPDATE polylock_holds SET notice = ?").bind(format!("{evil}\n{evil}"));
    assert_eq!(notice.execute(&mut store).await.unwrap().rows_affected(), 1);

    let waiting = workspace.call("run --wait 4 --output text x true");
    let status = workspace.call("status x");
    assert_eq!(stdout(&status).lines().count(), 4, "{}", stdout(&status));
    for shown in [
        stdout(&status),
        stdout(&workspace.call("list")),
        stdout(&workspace.call("status --output json x")),
        stdout(&list(&workspace, "jsonl", "")),
        stdout(&workspace.call("break --yes x")),
        stdout(&workspace.call("break --yes --output jsonl x")),
        stderr(&waiting),
        stderr(&workspace.call("run -n x true")),
    ] {
        assert!(shown.contains("evil\u{fffd}\u{fffd}k2: free"), "{shown:?}");
        let forged = shown.lines().any(|line| line.starts_with("k2"));
        let control = shown.chars().any(|c| c != '\n' && (c.is_control() || "\u{202e}\u{2028}".contains(c)));
        assert!(!forged && !control, "{shown:?}");
    }
    drop(holder);
}

#[test]
fn completions_and_manual_pages() {
    let workspace = Workspace::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = stdout(&workspace.call(&format!("completions {shell}")));
        // The script calls the program.
        assert!(text.contains("polylock") && text.contains("_POLYLOCK_COMPLETE"), "{shell}");
    }
    let bash = Command::new("bash").args(["-n", "-c", &stdout(&workspace.call("completions bash"))]).status();
    assert!(bash.is_ok_and(|status| status.success()), "bash can't read its completions");
    assert!(stdout(&workspace.call("man")).contains(".TH"));
    assert!(stdout(&workspace.call("man run")).contains("EXIT CODE"));
    assert!(workspace.call("man --dir .").status.success());
    assert!(workspace.path("polylock.1").exists() && workspace.path("polylock-run.1").exists());
}

#[test]
fn the_schema_is_printed_without_a_server() {
    let workspace = Workspace::new();
    for scheme in ["postgres", "mysql"] {
        let url =
            format!("{scheme}://app:kanarienvogel@no-such-host.invalid/app?polylock.namespace=app_locks");
        let output = workspace.polylock_without_store().args(["schema", "-S", &url]).output().unwrap();
        let text = stdout(&output);
        assert!(output.status.success() && stderr(&output).is_empty(), "{}", stderr(&output));
        assert!(text.contains("app_locks_holds") && !text.contains("kanarienvogel"), "{text}");
    }
    // The output is empty for a program that reads the statements; stderr has a note.
    for store in ["sqlite:locks.db", "memory:"] {
        let output = workspace.polylock_without_store().args(["schema", "-S", store]).output().unwrap();
        assert!(output.status.success() && output.stdout.is_empty());
        assert!(stderr(&output).contains("needs no preparation"), "{}", stderr(&output));
    }
    assert!(!workspace.path("locks.db").exists());
}

#[test]
fn a_fence_is_printed_without_a_server() {
    let workspace = Workspace::new();
    let run = |url: &str, arguments: &str| {
        let mut command = workspace.polylock_without_store();
        command.args(["schema", "--fence", "-S", url]).args(arguments.split_whitespace());
        command.output().unwrap()
    };
    for (url, fence, trigger) in [
        (
            "sqlite:///srv/app.db?polylock.namespace=app",
            "INSTEAD OF INSERT ON `app_fence`",
            "UPDATE ON `orders`",
        ),
        (
            "postgres://me:kanarienvogel@h/x",
            "FUNCTION \"public\".\"polylock_fence\"",
            "ON \"public\".\"orders\"",
        ),
        ("mysql://me:kanarienvogel@h/x", "PROCEDURE", "UPDATE ON `orders`"),
    ] {
        for (arguments, expected) in [
            ("", fence),
            ("--table orders", trigger),
            ("--table orders --column token", "token"),
            ("--drop", "DROP TABLE IF EXISTS"),
            ("--table orders --drop", "DROP TRIGGER IF EXISTS"),
        ] {
            let output = run(url, arguments);
            let text = stdout(&output);
            assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
            assert!(text.contains(expected) && !text.contains("kanarienvogel"), "{url} {arguments}: {text}");
        }
    }
    assert!(stdout(&run("redis://h", "")).contains("POLYLOCKSTALE"));
    for (url, arguments, expected) in [
        ("sqlite:app.db", "--table a;b", "table: \"a;b\" is not a valid name"),
        ("sqlite:app.db", "--table orders --column a.b", "table: \"a.b\" is not a valid name of a column"),
        ("redis://h", "--table orders", "table: Redis has no tables"),
        ("redis://h", "--drop", "delete the keys"),
        ("memory:", "", "no statements for a fence in a memory store"),
        ("redlock://a,b,c", "", "no statements for a fence in a redlock store"),
        ("postgres://h/x?polylock.tabel=x", "", "polylock.tabel"),
    ] {
        let output = run(url, arguments);
        assert_eq!(output.status.code(), Some(78), "{url} {arguments}: {output:?}");
        assert!(stderr(&output).contains(expected), "{url} {arguments}: {}", stderr(&output));
    }
    for arguments in ["schema --table orders", "schema --drop", "schema --fence --column token"] {
        assert_eq!(workspace.call(arguments).status.code(), Some(64), "{arguments}");
    }
    assert!(!workspace.path("app.db").exists());
}

#[test]
fn colours_are_used_on_terminals_or_on_request() {
    let workspace = Workspace::new();
    let free = |flags: &[&str], variable: (&str, &str)| {
        stdout(
            &workspace
                .polylock()
                .args(flags)
                .args(["status", "x"])
                .env(variable.0, variable.1)
                .output()
                .unwrap(),
        )
    };
    assert!(free(&[], ("A", "B")).starts_with("x: free\n"));
    assert!(free(&["--color", "always"], ("A", "B")).contains('\u{1b}'));
    assert!(free(&[], ("CLICOLOR_FORCE", "1")).contains('\u{1b}'));
    assert!(free(&["--color", "never"], ("CLICOLOR_FORCE", "1")).starts_with("x: free\n"));
}

#[test]
fn a_password_is_never_shown() {
    let workspace = Workspace::new();
    let canary = "kanarienvogel";
    let config = format!("store = 'redis://me:{canary}@h'\n[profiles]\nodd = '{canary}'\n");
    fs::write(workspace.path("bad.toml"), config).unwrap();
    // A raw ? ends the part of a URL that is masked.
    let raw = format!("redis://me:12?{canary}@h/0");
    fs::write(
        workspace.path("raw.toml"),
        format!("store = '{raw}'\n[profiles.far]\nstore = 'postgres://me:?{canary}@h/x'\n"),
    )
    .unwrap();
    fs::write(workspace.path("url"), &raw).unwrap();
    let half = format!("store = \"redis://me:{canary}@h\n");
    fs::write(workspace.path("half.toml"), half).unwrap();
    for arguments in [
        format!("-S redis://me:{canary}@host/0 list"),
        format!("-v -S sqlite://me:{canary}@/no/such/dir/l.db?password={canary} run x true"),
        format!("-S sqlite:l.db?password={canary} run x true"),
        format!("-S nope://{canary}@h?sig={canary} --output json run x true"),
        "--config bad.toml list".to_owned(),
        "--config half.toml list".to_owned(),
        "--config half.toml --output json run x true".to_owned(),
        format!("-S postgres://me:{canary}@no-such-host.invalid/x run --outage 0 x true"),
        format!("-S postgres://me:{canary}@host/x?polylock.tabel={canary} schema"),
        format!("-S {raw} list"),
        format!("-S {raw} --output json run x true"),
        format!("-S postgres://me:12?{canary}@h/x schema"),
        format!("-S mysql://me:12?{canary}@h/x status y"),
        format!("-S redlock://me:12?{canary}@h,i,j/0 break --yes y"),
        format!("-S zookeeper://me:12?{canary}@h/x -v run x true"),
        format!("-S sqlite://me:12?{canary}@h/x run x true"),
        "--store-env RAW run x true".to_owned(),
        "-S env:RAW list".to_owned(),
        "-S file:url status x".to_owned(),
        "--config raw.toml run --status-file status x true".to_owned(),
        "--config raw.toml -p far list".to_owned(),
        "run x true".to_owned(),
    ] {
        let mut command = workspace.polylock_without_store();
        command.env("RAW", &raw);
        if arguments == "run x true" {
            command.env("POLYLOCK_STORE", &raw);
        }
        let output = command.args(arguments.split(' ')).output().unwrap();
        assert!(!output.status.success(), "{arguments}");
        let shown = stdout(&output) + &stderr(&output) + &workspace.read("status");
        assert!(!shown.contains(canary), "{arguments}: {shown}");
        assert!(!shown.is_empty() && !shown.contains("panicked"), "{arguments}: {shown}");
    }
}
