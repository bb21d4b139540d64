//! From one version of the tables to the next, with programs of both versions at work.
//!
//! The next version is the same program with one more step and with separate routines, which use the columns that the step adds.

use std::time::Duration;

use futures_util::future::join_all;
use polylock::Locks;
use polylock_core::{Error, Result, url::StoreUrl};
use polylock_integration_tests::{
    clock::pause,
    load::Load,
    stores,
    targets::{self, Namespace},
};
use polylock_sql::{NextVersion, mysql, postgres as pg, sqlite};
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
                let Some(namespace) = super::namespace(stringify!($target)).await else { return };
                super::$test(&namespace).await;
            })*
        }
    };
}
on_each! {
    sqlite_full postgres mariadb postgres_pessimistic mariadb_pessimistic: [
        old_and_new_programs_share_locks_after_the_upgrade
        an_old_program_uses_tables_created_by_a_new_one
        incompatible_versions_never_use_the_same_tables
        an_interrupted_upgrade_is_completed
        emptied_tables_of_the_new_version_are_completed
    ]
}

async fn namespace(target: &str) -> Option<Namespace> {
    let there = stores::is_available(target).await;
    if there {
        Some(targets::create(target).await.unwrap_or_else(|missing| panic!("{missing:?}")))
    } else {
        None
    }
}

/// The store of `namespace`, as a program of the current version sees it, or of the next one.
async fn open(namespace: &Namespace, next: Option<NextVersion>) -> Result<Locks> {
    let url = StoreUrl::parse(namespace.url())?;
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

fn is_pessimistic(namespace: &Namespace) -> bool {
    namespace.url().contains("pessimistic")
}

/// Columns, a table and an index, as a step adds them.
fn step(namespace: &Namespace) -> &'static str {
    match namespace.url().split(':').next() {
        // Not to the tables that open transactions have locks on.
        Some("postgres") if is_pessimistic(namespace) => {
            "CREATE TABLE IF NOT EXISTS {p}_notes (name bytea PRIMARY KEY, made_by text NOT NULL DEFAULT 'old');"
        }
        Some("mysql") if is_pessimistic(namespace) => {
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
fn with_routines(namespace: &Namespace, next: NextVersion) -> NextVersion {
    let routines = ["settle", "claim", "keep_alive", "release", "break", "sweep", "convert", "watch"];
    let next = routines.iter().fold(next, |next, routine| {
        [4, 3, 2].iter().fold(next, |next, version| {
            next.edit(&format!("_{routine}_{version}"), &format!("_{routine}_{}", version + 1))
        })
    });
    match namespace.url().split(':').next() {
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
            .edit("a_label, v_now, v_now + a_ttl)", "a_label, v_now, v_now + a_ttl, 'new')")
            .edit("v_label, v_now, v_until)", "v_label, v_now, v_until, 'new')"),
        _ => next.edit(
            "(name, slot, request, mode, owner, label, since, expires_at, process)\nSELECT ?1, ?5,",
            "(made_by, name, slot, request, mode, owner, label, since, expires_at, process)\nSELECT 'new', ?1, ?5,",
        ),
    }
}

fn compatible(namespace: &Namespace) -> NextVersion {
    with_routines(namespace, NextVersion::compatible(step(namespace)))
}

fn incompatible(namespace: &Namespace) -> NextVersion {
    with_routines(namespace, NextVersion::incompatible(step(namespace)))
}

/// Returns the text in the first column of the reply. `{p}` is the prefix of the tables.
async fn ask(namespace: &Namespace, sql: &str) -> Vec<String> {
    let (server, query) = namespace.url().split_once('?').unwrap();
    let table =
        query.split('&').find_map(|key| key.strip_prefix("polylock.namespace=")).unwrap_or("polylock");
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
                SqliteConnectOptions::new().filename(namespace.file("locks.db")).connect().await.unwrap();
            let rows = connection.fetch_all(sql).await.unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        }
    }
}

/// Returns the program that created the hold of `n` that `locks` acquires.
async fn made_by(namespace: &Namespace, locks: &Locks) -> Vec<String> {
    let guard = locks.lock("n").acquire().await.unwrap();
    let found = ask(namespace, "SELECT made_by FROM {p}_holds").await;
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

async fn old_and_new_programs_share_locks_after_the_upgrade(namespace: &Namespace) {
    let load =
        |millis| Load { tasks: 2, duration: Duration::from_millis(millis), min_holds: 20, ..Load::default() };
    let old = [open(namespace, None).await.unwrap(), open(namespace, None).await.unwrap()];
    let new = async {
        pause(Duration::from_millis(200)).await;
        // Two programs of the new version start at once.
        let new = join_all([
            open(namespace, Some(compatible(namespace))),
            open(namespace, Some(compatible(namespace))),
        ])
        .await;
        let new: Vec<Locks> = new.into_iter().map(Result::unwrap).collect();
        // A program of the old version is restarted.
        let again = open(namespace, None).await.unwrap();
        if !is_pessimistic(namespace) {
            let [old, new] = [made_by(namespace, &again).await, made_by(namespace, &new[0]).await];
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
    assert_eq!(ask(namespace, "SELECT 'a' FROM {p}_notes").await, [""; 0], "the step was done");
}

async fn an_old_program_uses_tables_created_by_a_new_one(namespace: &Namespace) {
    let new = open(namespace, Some(compatible(namespace))).await.unwrap();
    // It creates its own routines in addition.
    let old = open(namespace, None).await.unwrap();
    if !is_pessimistic(namespace) {
        assert_eq!(made_by(namespace, &old).await, ["old"]);
        assert_eq!(made_by(namespace, &new).await, ["new"]);
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
    assert_eq!(ask(namespace, VERSION).await, [(current(namespace) + 1).to_string()], "it has not gone back");
    let new = open(namespace, Some(compatible(namespace))).await.unwrap();
    new.lock("n").acquire().await.unwrap().release().await.unwrap();
}

/// The queries for the version of the tables, and for that and the oldest one that may use them.
const VERSION: &str = "SELECT CAST(max(value) AS CHAR(9)) FROM {p}_meta";
const VALUES: &str = "SELECT CAST(value AS CHAR(9)) FROM {p}_meta ORDER BY value";

/// The version of this program.
fn current(namespace: &Namespace) -> i64 {
    if namespace.url().starts_with("sqlite") { 5 } else { 3 }
}

/// Why the store is not to be opened.
async fn refusal(namespace: &Namespace, next: Option<NextVersion>) -> String {
    match open(namespace, next).await {
        Err(Error::Config(error)) if error.key == "polylock.namespace" => error.problem,
        other => panic!("should be refused: {other:?}"),
    }
}

async fn incompatible_versions_never_use_the_same_tables(namespace: &Namespace) {
    let old = open(namespace, None).await.unwrap();
    let before = ask(namespace, VALUES).await;
    let refused = refusal(namespace, Some(incompatible(namespace))).await;
    // Nor by an administrator.
    let messages = script(namespace, incompatible(namespace));
    if !messages.is_empty() {
        let refused = administer(namespace, &messages).await.unwrap_err().to_string();
        let expected = format!("programs of versions before {}", current(namespace) + 1);
        assert!(refused.contains(&expected), "{refused}");
    }
    assert_eq!(ask(namespace, VALUES).await, before, "nothing was changed");
    old.lock("n").acquire().await.unwrap().release().await.unwrap();
    drop(old);

    // The operator has stopped the old programs, and runs the statement in the message.
    let (_, rest) = refused.split_once("run `").unwrap();
    let (statement, _) = rest.split_once('`').unwrap();
    ask(namespace, statement).await;
    let token = async |locks: &Locks| {
        let guard = locks.lock("n").acquire().await.unwrap();
        let token = guard.fencing_token();
        guard.release().await.unwrap();
        token
    };
    let refused = refusal(namespace, None).await;
    assert!(refused.contains("update the program"), "{refused}");
    let new = open(namespace, Some(incompatible(namespace))).await.unwrap();
    token(&new).await;
    let refused = refusal(namespace, None).await;
    assert!(refused.contains("update the program"), "{refused}");
}

/// Returns the messages that an administrator runs for the next version; none for a store without an administrator.
fn script(namespace: &Namespace, next: NextVersion) -> Vec<String> {
    let url = StoreUrl::parse(namespace.url()).unwrap();
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
async fn administer(namespace: &Namespace, messages: &[String]) -> sqlx::Result<()> {
    let server = namespace.url().split('?').next().unwrap();
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

async fn an_interrupted_upgrade_is_completed(namespace: &Namespace) {
    // Of a file it is one transaction of the program's own.
    let messages = script(namespace, compatible(namespace));
    let is_step = |message: &String| message.contains("made_by") || message.contains("_notes (");
    let first = messages.iter().position(is_step);
    let Some(first) = first else { return assert!(namespace.url().starts_with("sqlite")) };
    let last = messages.iter().rposition(is_step).unwrap();
    let uses = async |locks: Locks| {
        locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    };
    let old = open(namespace, None).await.unwrap();
    for count in (first..last).step_by(3) {
        administer(namespace, &messages[..count]).await.unwrap();
        uses(old.clone()).await;
        uses(open(namespace, None).await.unwrap()).await;
        assert_eq!(
            ask(namespace, VERSION).await,
            [current(namespace).to_string()],
            "it counts when it is done"
        );
    }
    uses(open(namespace, Some(compatible(namespace))).await.unwrap()).await;
    uses(old).await;
    assert_eq!(ask(namespace, VERSION).await, [(current(namespace) + 1).to_string()]);
    // All of it does no harm where it was done.
    administer(namespace, &messages).await.unwrap();
    uses(open(namespace, Some(compatible(namespace))).await.unwrap()).await;
}

async fn emptied_tables_of_the_new_version_are_completed(namespace: &Namespace) {
    let new = open(namespace, Some(compatible(namespace))).await.unwrap();
    let token = async |locks: &Locks| {
        let guard = locks.lock("n").acquire().await.unwrap();
        let token = guard.fencing_token();
        guard.release().await.unwrap();
        token
    };
    let first = token(&new).await;
    namespace.empty().await.unwrap();
    ask(namespace, "DELETE FROM {p}_meta").await;
    let second = token(&open(namespace, Some(compatible(namespace))).await.unwrap()).await;
    assert!(second > first);
    token(&open(namespace, None).await.unwrap()).await;
    assert_eq!(ask(namespace, VERSION).await, [(current(namespace) + 1).to_string()]);
}
