//! What is printed for people and for programs.
#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

mod support;

use std::{fs, os::fd::AsFd, process::Command};

use rustix::io::{FdFlags, fcntl_setfd};
use serde_json::Value;
use sqlx::Connection;
use support::{Place, lines, stderr, stdout};

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
fn the_status_file_tells_the_whole_story() {
    let place = Place::new();
    fs::write(place.path("status"), "from the last time\n").unwrap();
    let run = place.start("--status-file status --label job --ttl 900ms x", "sleep 1; exit 75");
    assert_eq!(run.code(), Some(75));
    let lines = lines(&place.read("status"));
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
fn the_place_in_line_and_the_verdict_of_who_waits_in_vain() {
    let place = Place::new();
    let holder = place.start("x", "echo > held; exec sleep 60");
    place.wait_for_file("held");
    let waiter = place.start("-w 1.5 --status-file status x", "true");
    assert_eq!(waiter.code(), Some(75));
    let lines = lines(&place.read("status"));
    assert_eq!(events(&lines), ["queued", "verdict"]);
    assert_eq!(lines[0]["position"], 1);
    assert_eq!(lines[1]["verdict"], "busy");
    drop(holder);
}

#[test]
fn the_status_descriptor() {
    let place = Place::new();
    let (mut reader, writer) = std::io::pipe().unwrap();
    // Inherited under the number it has.
    fcntl_setfd(writer.as_fd(), FdFlags::empty()).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&writer).to_string();
    let output = place.polylock().args(["run", "--status-fd", &number, "x", "true"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    drop(writer);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
    assert_eq!(events(&lines(&text)), ["acquired", "released", "verdict"]);
}

#[test]
fn json_on_stderr_in_place_of_text() {
    let place = Place::new();
    let output = place.call("run --output json x echo mine");
    assert_eq!(stdout(&output), "mine\n");
    assert_eq!(events(&lines(&stderr(&output))), ["acquired", "released", "verdict"]);
    let failed = place.call("run --output jsonl x surely-no-such-command");
    let text = lines(&stderr(&failed));
    assert_eq!(text[text.len() - 1]["event"], "error");
    assert_eq!(text[text.len() - 1]["exit_code"], 127);
}

#[test]
fn status_and_list_tell_who_holds_and_who_waits() {
    let place = Place::new();
    let holder = place.start("--label nightly app/x", "echo > held; exec sleep 60");
    place.wait_for_file("held");
    let waiter = place.start("-s app/x", "true");
    place.wait_for_waiters("app/x", 1);

    let text = stdout(&place.call("status app/x"));
    assert!(text.starts_with("app/x: held\n  held by "), "{text}");
    assert!(text.contains("(nightly), token ") && text.contains("\n  1st in line: "), "{text}");
    let status = place.status("app/x");
    assert_eq!((&status["state"], &status["backend"]), (&"held".into(), &"sqlite".into()));
    let entry = &status["holders"][0];
    assert_eq!((&entry["mode"], &entry["label"]), (&"EX".into(), &"nightly".into()));
    assert!(entry["fencing_token"].as_u64().unwrap() > 0 && entry["expires_in_ms"].as_u64().unwrap() > 0);
    assert!(entry["age_ms"].as_u64().is_some());
    assert_eq!((&status["waiters"][0]["mode"], &status["waiters"][0]["position"]), (&"PR".into(), &1.into()));

    for (prefix, number) in [("", 1), ("app/", 1), ("other", 0)] {
        let document: Value = serde_json::from_str(&stdout(&list(&place, "json", prefix))).unwrap();
        assert_eq!(document.as_array().unwrap().len(), number, "{prefix:?}");
        assert_eq!(lines(&stdout(&list(&place, "jsonl", prefix))).len(), number, "{prefix:?}");
    }
    let broken = place.call("break --yes --reason stuck --output jsonl app/x");
    let events = lines(&stdout(&broken));
    assert_eq!((&events[0]["event"], &events[0]["reason"]), (&"broken".into(), &"stuck".into()));
    assert!(events[0]["forced"] == false && events[0]["by"].as_str().unwrap().contains('@'), "{}", events[0]);
    assert!(KEYS.iter().all(|key| events[0].get(key).is_some()), "{}", events[0]);
    assert_eq!(waiter.code(), Some(0));
    assert!(stdout(&place.call("status never/seen")).starts_with("never/seen: free\n  store: sqlite:///"));
    drop(holder);
}

#[test]
fn a_run_without_a_label_shows_its_user_and_program() {
    let place = Place::new();
    let mut run = place.polylock();
    run.env("LOGNAME", "deploy").args(["run", "x", "/bin/sh", "-c", "echo > held; exec sleep 60", "secret"]);
    let run = support::Running::spawn(run);
    place.wait_for_file("held");
    assert_eq!(place.status("x")["holders"][0]["label"], "deploy: sh");
    drop(run);
}

fn list(place: &Place, format: &str, prefix: &str) -> std::process::Output {
    place.polylock().args(["list", "--output", format, prefix]).output().unwrap()
}

#[test]
fn a_name_cannot_forge_a_line() {
    let place = Place::new();
    let output = place.polylock().args(["status", "a\nb\u{1b}[31m"]).output().unwrap();
    assert!(stdout(&output).starts_with("a\\nb\\u{1b}[31m: free\n  store: "), "{}", stdout(&output));
}

/// Other programs write to the store, too.
#[tokio::test]
async fn neither_can_an_owner_a_label_or_a_reason_that_others_have_written() {
    let place = Place::new();
    let holder = place.start("x", "echo > held; exec sleep 60");
    place.wait_for_file("held");
    let evil = "evil\r\nk2: free\u{1b}[2J\u{202e}\u{2028}";
    let mut store = sqlx::SqliteConnection::connect(&place.url()).await.unwrap();
    let waiter = "INSERT INTO polylock_waiters (name, request, mode, owner, label, since, expires_at) \
                  SELECT name, randomblob(16), mode, ?, ?, since, expires_at + 20000000 FROM polylock_holds";
    let mark = "UPDATE polylock_holds SET owner = ?, label = ?, expires_at = expires_at + 20000000";
    for statement in [waiter, mark] {
        sqlx::query(sqlx::AssertSqlSafe(statement)).bind(evil).bind(evil).execute(&mut store).await.unwrap();
    }
    let notice = sqlx::query("UPDATE polylock_holds SET notice = ?").bind(format!("{evil}\n{evil}"));
    assert_eq!(notice.execute(&mut store).await.unwrap().rows_affected(), 1);

    let waiting = place.call("run --wait 1.5 --output text x true");
    let status = place.call("status x");
    assert_eq!(stdout(&status).lines().count(), 4, "{}", stdout(&status));
    for shown in [
        stdout(&status),
        stdout(&place.call("list")),
        stdout(&place.call("status --output json x")),
        stdout(&list(&place, "jsonl", "")),
        stdout(&place.call("break --yes x")),
        stdout(&place.call("break --yes --output jsonl x")),
        stderr(&waiting),
        stderr(&place.call("run -n x true")),
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
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = stdout(&place.call(&format!("completions {shell}")));
        assert!(text.contains("polylock") && text.contains("min-hold"), "{shell}");
        assert!(!text.contains("__warden"), "{shell}");
    }
    let bash = Command::new("bash").args(["-n", "-c", &stdout(&place.call("completions bash"))]).status();
    assert!(bash.is_ok_and(|status| status.success()), "bash can't read its completions");
    assert!(stdout(&place.call("man")).contains(".TH"));
    assert!(stdout(&place.call("man run")).contains("EXIT CODE"));
    assert!(place.call("man --dir .").status.success());
    assert!(place.path("polylock.1").exists() && place.path("polylock-run.1").exists());
}

#[test]
fn the_statements_that_make_the_tables_are_printed_without_a_server() {
    let place = Place::new();
    for scheme in ["postgres", "mysql"] {
        let url = format!("{scheme}://app:kanarienvogel@no-such-host.invalid/app?polylock.table=app_locks");
        let output = place.bare().args(["schema", "-S", &url]).output().unwrap();
        let text = stdout(&output);
        assert!(output.status.success() && stderr(&output).is_empty(), "{}", stderr(&output));
        assert!(text.contains("app_locks_holds") && !text.contains("kanarienvogel"), "{text}");
    }
    // Nothing for a program that reads the statements, and a word for people.
    for store in ["sqlite:locks.db", "memory:"] {
        let output = place.bare().args(["schema", "-S", store]).output().unwrap();
        assert!(output.status.success() && output.stdout.is_empty());
        assert!(stderr(&output).contains("whoever opens it makes its tables"), "{}", stderr(&output));
    }
    assert!(!place.path("locks.db").exists());
}

#[test]
fn colours_are_for_terminals_or_on_demand() {
    let place = Place::new();
    let free = |flags: &[&str], variable: (&str, &str)| {
        stdout(
            &place.polylock().args(flags).args(["status", "x"]).env(variable.0, variable.1).output().unwrap(),
        )
    };
    assert!(free(&[], ("A", "B")).starts_with("x: free\n"));
    assert!(free(&["--color", "always"], ("A", "B")).contains('\u{1b}'));
    assert!(free(&[], ("CLICOLOR_FORCE", "1")).contains('\u{1b}'));
    assert!(free(&["--color", "never"], ("CLICOLOR_FORCE", "1")).starts_with("x: free\n"));
}

#[test]
fn a_password_is_never_shown() {
    let place = Place::new();
    let canary = "kanarienvogel";
    let config = format!("store = 'redis://me:{canary}@h'\n[profiles]\nodd = '{canary}'\n");
    fs::write(place.path("bad.toml"), config).unwrap();
    // A raw ? ends the part of a URL that is masked.
    let raw = format!("redis://me:12?{canary}@h/0");
    fs::write(
        place.path("raw.toml"),
        format!("store = '{raw}'\n[profiles.far]\nstore = 'postgres://me:?{canary}@h/x'\n"),
    )
    .unwrap();
    fs::write(place.path("url"), &raw).unwrap();
    let half = format!("store = \"redis://me:{canary}@h\n");
    fs::write(place.path("half.toml"), half).unwrap();
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
        let mut command = place.bare();
        command.env("RAW", &raw);
        if arguments == "run x true" {
            command.env("POLYLOCK_STORE", &raw);
        }
        let output = command.args(arguments.split(' ')).output().unwrap();
        assert!(!output.status.success(), "{arguments}");
        let shown = stdout(&output) + &stderr(&output) + &place.read("status");
        assert!(!shown.contains(canary), "{arguments}: {shown}");
        assert!(!shown.is_empty() && !shown.contains("panicked"), "{arguments}: {shown}");
    }
}
