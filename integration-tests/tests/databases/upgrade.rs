//! From one version of the tables to the next, with programs of both versions at work.
//!
//! There is one version so far. The next one is the same program with one step more and with routines of its own, which use what the
//! step adds.

use std::time::Duration;

use futures_util::future::join_all;
use polylock::Locks;
use polylock_core::{Error, Result, url::StoreUrl};
use polylock_integration_tests::{
    clock::pause,
    load::Load,
    stores,
    targets::{self, Spot},
};
use polylock_sql::{Next, mysql, postgres as pg, sqlite};
use polylock_testkit::{
    Target as _,
    history::{self, Rules, Section},
};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, Row, sqlite::SqliteConnectOptions};

macro_rules! on_each {
    ($($target:ident)*: $tests:tt) => {
        $(on_each! { @ $target $tests })*
    };
    (@ $target:ident [$($test:ident)*]) => {
        mod $target {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let Some(spot) = super::spot(stringify!($target)).await else { return };
                super::$test(&spot).await;
            })*
        }
    };
}
on_each! {
    sqlite_full postgres mariadb postgres_pessimistic mariadb_pessimistic: [
        old_and_new_programs_share_locks_from_the_upgrade_on
        a_program_of_the_old_version_uses_tables_that_the_new_one_made
        versions_that_can_not_share_locks_never_meet
        an_upgrade_that_was_interrupted_is_completed
        tables_of_the_new_version_that_were_emptied_are_completed
    ]
}

async fn spot(target: &str) -> Option<Spot> {
    let there = stores::is_there(target).await;
    if there {
        Some(targets::make(target).await.unwrap_or_else(|missing| panic!("{missing:?}")))
    } else {
        None
    }
}

/// The store of `spot`, as a program of the current version sees it, or of the next one.
async fn open(spot: &Spot, next: Option<Next>) -> Result<Locks> {
    let url = StoreUrl::parse(spot.url())?;
    let mut keys = url.keys();
    let store = match url.scheme() {
        "postgres" => {
            let config = pg::Config::from_url(&url, &mut keys)?;
            pg::connect(match next {
                Some(next) => config.next_version(next),
                None => config,
            })
            .await
        }
        "mysql" => {
            let config = mysql::Config::from_url(&url, &mut keys)?;
            mysql::connect(match next {
                Some(next) => config.next_version(next),
                None => config,
            })
            .await
        }
        _ => {
            let config = sqlite::Config::from_url(&url, &mut keys)?;
            sqlite::connect(match next {
                Some(next) => config.next_version(next),
                None => config,
            })
            .await
        }
    };
    store.map(Locks::new)
}

fn is_pessimistic(spot: &Spot) -> bool {
    spot.url().contains("pessimistic")
}

/// Columns, a table and an index, as a step adds them.
fn step(spot: &Spot) -> &'static str {
    match spot.url().split(':').next() {
        // Not to the tables that open transactions have locks on.
        Some("postgres") if is_pessimistic(spot) => {
            "CREATE TABLE IF NOT EXISTS {p}_notes (name bytea PRIMARY KEY, made_by text NOT NULL DEFAULT 'old');"
        }
        Some("mysql") if is_pessimistic(spot) => {
            "CREATE TABLE IF NOT EXISTS {p}_notes (name VARBINARY(255) PRIMARY KEY, made_by VARBINARY(9) NOT NULL DEFAULT 'old');"
        }
        Some("postgres") => {
            "-- Who made a hold.\n\
             ALTER TABLE {p}_holds ADD COLUMN made_by text NOT NULL DEFAULT 'old';\n\
             ALTER TABLE {p}_waiters ADD COLUMN made_by text NOT NULL DEFAULT 'old';\n\
             CREATE INDEX IF NOT EXISTS {t}_holds_made_by ON {p}_holds (made_by);\n\
             CREATE TABLE IF NOT EXISTS {p}_notes (name bytea PRIMARY KEY);"
        }
        Some("mysql") => {
            "-- Who made a hold.\n\
             ALTER TABLE {p}_holds ADD COLUMN made_by VARBINARY(9) NOT NULL DEFAULT 'old';\n\
             ALTER TABLE {p}_waiters ADD COLUMN made_by VARBINARY(9) NOT NULL DEFAULT 'old';\n\
             ALTER TABLE {p}_holds ADD KEY made_by (made_by, name);\n\
             CREATE TABLE IF NOT EXISTS {p}_notes (name VARBINARY(255) PRIMARY KEY) ENGINE=InnoDB;"
        }
        _ => {
            "-- Who made a hold.\n\
             ALTER TABLE {p}_holds ADD COLUMN made_by TEXT NOT NULL DEFAULT 'old';\n\
             ALTER TABLE {p}_waiters ADD COLUMN made_by TEXT NOT NULL DEFAULT 'old';\n\
             CREATE INDEX IF NOT EXISTS {p}_holds_made_by ON {p}_holds (made_by);\n\
             CREATE TABLE IF NOT EXISTS {p}_notes (name BLOB PRIMARY KEY) STRICT, WITHOUT ROWID;"
        }
    }
}

/// Routines of the next version, beside the current ones, and a claim that fills the new column.
fn with_routines(spot: &Spot, next: Next) -> Next {
    let routines = ["settle", "claim", "keep_alive", "release", "break", "sweep"];
    let next = routines
        .iter()
        .fold(next, |next, routine| next.edit(&format!("_{routine}_2"), &format!("_{routine}_3")));
    match spot.url().split(':').next() {
        Some("postgres") => next
            .edit(
                "owner, label, since, expires_at)\n    VALUES (nextval(",
                "owner, label, since, expires_at, made_by)\n    VALUES (nextval(",
            )
            .edit("v_now,\n        v_now + a_ttl)", "v_now,\n        v_now + a_ttl, 'new')"),
        Some("mysql") => next
            .edit(
                "(name, slot, request, token, mode, owner, label, since, expires_at)",
                "(name, slot, request, token, mode, owner, label, since, expires_at, made_by)",
            )
            .edit("a_label, v_now, v_now + a_ttl)", "a_label, v_now, v_now + a_ttl, 'new')"),
        _ => next.edit(
            "(name, slot, request, mode, owner, label, since, expires_at)\nSELECT ?1, ?5,",
            "(made_by, name, slot, request, mode, owner, label, since, expires_at)\nSELECT 'new', ?1, ?5,",
        ),
    }
}

fn compatible(spot: &Spot) -> Next {
    with_routines(spot, Next::compatible(step(spot)))
}

fn incompatible(spot: &Spot) -> Next {
    with_routines(spot, Next::incompatible(step(spot)))
}

/// What the database answers with, as text, in one column; and the prefix of the tables in `{p}`.
async fn ask(spot: &Spot, sql: &str) -> Vec<String> {
    let (server, query) = spot.url().split_once('?').unwrap();
    let table = query.split('&').find_map(|key| key.strip_prefix("polylock.table=")).unwrap_or("polylock");
    let sql = sqlx::raw_sql(AssertSqlSafe(sql.replace("{p}", table)));
    match server.split(':').next() {
        Some("postgres") => {
            let mut connection = sqlx::PgConnection::connect(server).await.unwrap();
            let rows = connection.fetch_all(sql).await.unwrap();
            rows.iter().map(|row| row.get::<String, _>(0).trim().to_owned()).collect()
        }
        Some("mysql") => {
            let mut connection = sqlx::MySqlConnection::connect(server).await.unwrap();
            let rows = connection.fetch_all(sql).await.unwrap();
            rows.iter().map(|row| String::from_utf8(row.get_unchecked(0)).unwrap()).collect()
        }
        _ => {
            let mut connection =
                SqliteConnectOptions::new().filename(spot.file("locks.db")).connect().await.unwrap();
            let rows = connection.fetch_all(sql).await.unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        }
    }
}

/// Who made the hold of `n` that `locks` takes.
async fn made_by(spot: &Spot, locks: &Locks) -> Vec<String> {
    let guard = locks.lock("n").acquire().await.unwrap();
    let found = ask(spot, "SELECT made_by FROM {p}_holds").await;
    guard.release().await.unwrap();
    found
}

/// Those of `load` on `stores`, by clients that are called so.
async fn sections(load: Load, stores: Vec<Locks>, who: &str) -> Vec<Section> {
    let outcome = load.on(stores, async {}).await;
    assert_eq!((outcome.failures, outcome.losses), (0, 0), "{who}");
    let mut sections = outcome.sections;
    for section in &mut sections {
        section.client = format!("{who} {}", section.client);
    }
    assert!(sections.len() > 20, "{who}: {}", sections.len());
    sections
}

async fn old_and_new_programs_share_locks_from_the_upgrade_on(spot: &Spot) {
    let load =
        |millis| Load { tasks: 2, lasts: Duration::from_millis(millis), more_than: 20, ..Load::default() };
    let old = [open(spot, None).await.unwrap(), open(spot, None).await.unwrap()];
    let new = async {
        pause(Duration::from_millis(200)).await;
        // Two programs of the new version start at once.
        let new = join_all([open(spot, Some(compatible(spot))), open(spot, Some(compatible(spot)))]).await;
        let new: Vec<Locks> = new.into_iter().map(Result::unwrap).collect();
        // A program of the old one starts anew.
        let again = open(spot, None).await.unwrap();
        if !is_pessimistic(spot) {
            let [old, new] = [made_by(spot, &again).await, made_by(spot, &new[0]).await];
            assert!(
                old.iter().all(|by| by == "old" || by == "new") && new.contains(&"new".to_owned()),
                "{old:?} {new:?}"
            );
        }
        let (new, again) =
            tokio::join!(sections(load(1000), new, "new"), sections(load(1000), vec![again], "again"));
        [new, again].concat()
    };
    let (old, others) = tokio::join!(sections(load(1800), old.to_vec(), "old"), new);
    let all = [old, others].concat();
    println!("{} sections", all.len());
    assert_eq!(history::check(&all, Rules::default()), []);
    assert_eq!(ask(spot, "SELECT 'a' FROM {p}_notes").await, [""; 0], "the step was done");
}

async fn a_program_of_the_old_version_uses_tables_that_the_new_one_made(spot: &Spot) {
    let new = open(spot, Some(compatible(spot))).await.unwrap();
    // It makes what it needs beside.
    let old = open(spot, None).await.unwrap();
    if !is_pessimistic(spot) {
        assert_eq!(made_by(spot, &old).await, ["old"]);
        assert_eq!(made_by(spot, &new).await, ["new"]);
    }
    let held = new.lock("n").acquire().await.unwrap();
    assert!(old.lock("n").try_acquire().await.unwrap().is_none());
    let waiter =
        tokio::spawn(async move { old.lock("n").wait(Duration::from_secs(20)).acquire().await.unwrap() });
    pause(Duration::from_millis(50)).await;
    let first = held.fencing_token();
    held.release().await.unwrap();
    let second = waiter.await.unwrap();
    assert!(second.fencing_token() > first);
    second.release().await.unwrap();
    assert_eq!(ask(spot, VERSION).await, [(current(spot) + 1).to_string()], "it has not gone back");
    let new = open(spot, Some(compatible(spot))).await.unwrap();
    new.lock("n").acquire().await.unwrap().release().await.unwrap();
}

/// The queries for the version of the tables, and for that and the oldest one that may use them.
const VERSION: &str = "SELECT CAST(max(value) AS CHAR(9)) FROM {p}_meta";
const VALUES: &str = "SELECT CAST(value AS CHAR(9)) FROM {p}_meta ORDER BY value";

/// The version of this program.
fn current(spot: &Spot) -> i64 {
    if spot.url().starts_with("sqlite") { 3 } else { 2 }
}

/// Why the store is not to be opened.
async fn refusal(spot: &Spot, next: Option<Next>) -> String {
    match open(spot, next).await {
        Err(Error::Config(error)) if error.key == "polylock.table" => error.problem,
        other => panic!("should be refused: {other:?}"),
    }
}

async fn versions_that_can_not_share_locks_never_meet(spot: &Spot) {
    let old = open(spot, None).await.unwrap();
    let before = ask(spot, VALUES).await;
    let refused = refusal(spot, Some(incompatible(spot))).await;
    // Nor by an administrator.
    let messages = script(spot, incompatible(spot));
    if !messages.is_empty() {
        let refused = administer(spot, &messages).await.unwrap_err().to_string();
        assert!(refused.contains("programs of versions before 3"), "{refused}");
    }
    assert_eq!(ask(spot, VALUES).await, before, "nothing was changed");
    old.lock("n").acquire().await.unwrap().release().await.unwrap();
    drop(old);

    // The operator has stopped the old ones, and does what the message says.
    let (_, rest) = refused.split_once("run `").unwrap();
    let (statement, _) = rest.split_once('`').unwrap();
    ask(spot, statement).await;
    let token = async |locks: &Locks| {
        let guard = locks.lock("n").acquire().await.unwrap();
        let token = guard.fencing_token();
        guard.release().await.unwrap();
        token
    };
    let refused = refusal(spot, None).await;
    assert!(refused.contains("update the program"), "{refused}");
    let new = open(spot, Some(incompatible(spot))).await.unwrap();
    token(&new).await;
    let refused = refusal(spot, None).await;
    assert!(refused.contains("update the program"), "{refused}");
}

/// What an administrator runs for programs of the next version, one message each; nothing where there is no administrator.
fn script(spot: &Spot, next: Next) -> Vec<String> {
    let url = StoreUrl::parse(spot.url()).unwrap();
    let mut keys = url.keys();
    match url.scheme() {
        "postgres" => {
            let config = pg::Config::from_url(&url, &mut keys).unwrap().next_version(next);
            let text = pg::schema(&config).unwrap();
            let ends = |line: &&str| {
                line.starts_with("ALTER TABLE") || line.contains("made_by);") || line.contains("_notes (")
            };
            let mut messages = vec![String::new()];
            for line in text.lines() {
                messages.last_mut().unwrap().extend([line, "\n"]);
                if ends(&line) {
                    messages.push(String::new());
                }
            }
            messages
        }
        "mysql" => {
            let config = mysql::Config::from_url(&url, &mut keys).unwrap().next_version(next);
            mysql::schema_statements(&config).unwrap()
        }
        _ => Vec::new(),
    }
}

/// Runs the first of an administrator's messages in one session.
async fn administer(spot: &Spot, messages: &[String]) -> sqlx::Result<()> {
    let server = spot.url().split('?').next().unwrap();
    if server.starts_with("postgres") {
        let mut connection = sqlx::PgConnection::connect(server).await?;
        for message in messages {
            connection.execute(sqlx::raw_sql(AssertSqlSafe(message.clone()))).await?;
        }
    } else {
        let mut connection = sqlx::MySqlConnection::connect(server).await?;
        for message in messages {
            connection.execute(sqlx::raw_sql(AssertSqlSafe(message.clone()))).await?;
        }
    }
    Ok(())
}

async fn an_upgrade_that_was_interrupted_is_completed(spot: &Spot) {
    // Of a file it is one transaction of the program's own.
    let messages = script(spot, compatible(spot));
    let is_step = |message: &String| message.contains("made_by") || message.contains("_notes (");
    let first = messages.iter().position(is_step);
    let Some(first) = first else { return assert!(spot.url().starts_with("sqlite")) };
    let last = messages.iter().rposition(is_step).unwrap();
    let uses = async |locks: Locks| {
        locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    };
    let old = open(spot, None).await.unwrap();
    for count in (first..last).step_by(3) {
        administer(spot, &messages[..count]).await.unwrap();
        uses(old.clone()).await;
        uses(open(spot, None).await.unwrap()).await;
        assert_eq!(ask(spot, VERSION).await, [current(spot).to_string()], "it counts when it is done");
    }
    uses(open(spot, Some(compatible(spot))).await.unwrap()).await;
    uses(old).await;
    assert_eq!(ask(spot, VERSION).await, [(current(spot) + 1).to_string()]);
    // All of it does no harm where it was done.
    administer(spot, &messages).await.unwrap();
    uses(open(spot, Some(compatible(spot))).await.unwrap()).await;
}

async fn tables_of_the_new_version_that_were_emptied_are_completed(spot: &Spot) {
    let new = open(spot, Some(compatible(spot))).await.unwrap();
    let token = async |locks: &Locks| {
        let guard = locks.lock("n").acquire().await.unwrap();
        let token = guard.fencing_token();
        guard.release().await.unwrap();
        token
    };
    let first = token(&new).await;
    spot.empty().await.unwrap();
    ask(spot, "DELETE FROM {p}_meta").await;
    let second = token(&open(spot, Some(compatible(spot))).await.unwrap()).await;
    assert!(second > first);
    token(&open(spot, None).await.unwrap()).await;
    assert_eq!(ask(spot, VERSION).await, [(current(spot) + 1).to_string()]);
}
