//! A user without the right to create tables: the error contains the remedy, and an administrator applies it.

use std::{
    error::Error,
    ffi::OsStr,
    io::Write,
    iter,
    process::{Command, Output, Stdio},
    time::Duration,
};

use polylock::Locks;
use polylock_integration_tests::{cargo, clock::until, on_stores, process::Process, servers, stores};
use polylock_sql::{NextVersion, mysql, postgres as pg};

on_stores! {
    a_user_who_may_not_create_tables_gets_the_remedy_and_then_locks
    a_user_who_may_not_alter_tables_gets_the_remedy_at_an_upgrade
    the_pessimistic_strategy_has_separate_tables
}

/// A unique text that must appear in no message.
const PASSWORD: &str = "kanarienvogel";

/// Long enough for a machine with more to do.
const TTL: &str = "2s";

/// A new database, its administrator, and a user without rights in it.
struct TestDatabase {
    user: String,
    database: String,
    admin: String,
    weak: String,
}

impl TestDatabase {
    /// One in the store's server, if it has one.
    fn create(store: &str) -> Option<Self> {
        let server = match store {
            "postgres" => servers::postgres(),
            "mariadb" => servers::mariadb(),
            _ => return None,
        };
        let server = server.unwrap();
        let name = server.name();
        let db = Self {
            admin: url_for(server.url(), None, &name),
            weak: url_for(server.url(), Some(&format!("{name}:{PASSWORD}")), &name),
            user: name.clone(),
            database: name,
        };
        let Self { user, database, .. } = &db;
        if store == "postgres" {
            let sql = format!("CREATE DATABASE {database}; CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}'");
            assert_success(&client(server.url(), &sql));
            // The default from version 15 on.
            db.administer("REVOKE CREATE ON SCHEMA public FROM PUBLIC");
        } else {
            let sql = format!("CREATE DATABASE {database}; CREATE USER {user} IDENTIFIED BY '{PASSWORD}'");
            assert_success(&client(server.url(), &sql));
            // Its rights are those to a whole database, and without any the user could not even choose it.
            db.grants().iter().for_each(|grant| db.administer(grant));
        }
        Some(db)
    }

    fn administer(&self, sql: &str) {
        assert_success(&client(&self.admin, sql));
    }

    /// Those that the help lists, for this user and database.
    fn grants(&self) -> Vec<String> {
        let help = stdout_of(&polylock(["schema", "--help"]));
        let (_, rights) = help.split_once("RIGHTS").expect("rights in the help");
        let (postgres, mysql) = rights.split_once("MySQL").expect("both databases");
        let text = if self.is_postgres() { postgres } else { mysql };
        let grants = text.split(';').filter_map(|part| part.find("GRANT").map(|at| &part[at..]));
        let grants = grants.map(|grant| {
            let to = grant.replace("TO app", &format!("TO {}", self.user));
            to.replace("app.*", &format!("{}.*", self.database))
        });
        let grants: Vec<String> = grants.collect();
        assert!(!grants.is_empty(), "{help}");
        grants
    }

    fn is_postgres(&self) -> bool {
        self.admin.starts_with("postgres")
    }

    /// `polylock` as this user.
    fn polylock(&self, arguments: &[&str]) -> Output {
        polylock(["-S", &self.weak].iter().chain(arguments))
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        // Nothing remains on an external server, unless the test has failed.
        if !std::thread::panicking() {
            let Self { user, database, .. } = &*self;
            let (force, other) =
                if self.is_postgres() { (" WITH (FORCE)", "postgres") } else { ("", "mysql") };
            let elsewhere = url_for(&self.admin, None, other);
            for sql in [format!("DROP DATABASE {database}{force}"), format!("DROP USER {user}")] {
                assert_success(&client(&elsewhere, &sql));
            }
        }
    }
}

/// `url` with another database, and perhaps with another user.
fn url_for(url: &str, user: Option<&str>, database: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let (rest, query) =
        rest.split_once('?').map_or((rest, String::new()), |(rest, query)| (rest, format!("?{query}")));
    let (authority, _) = rest.split_once('/').unwrap_or((rest, ""));
    let (admin, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    format!("{scheme}://{}@{host}/{database}{query}", user.unwrap_or(admin))
}

/// The database's own client, with `sql` as its input, as in a pipe.
fn client(url: &str, sql: &str) -> Output {
    let mut command = if url.starts_with("postgres") {
        let mut psql = Command::new("psql");
        psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", url]);
        psql
    } else {
        let (_, rest) = url.split_once("://").unwrap();
        let rest = rest.split('?').next().unwrap_or_default();
        let (authority, database) = rest.split_once('/').unwrap();
        let (user, address) = authority.rsplit_once('@').unwrap();
        let (user, password) = user.split_once(':').unwrap_or((user, ""));
        let (host, port) = address.split_once(':').unwrap_or((address, "3306"));
        let mut mariadb = Command::new("mariadb");
        mariadb.args(["--no-defaults", "-h", host, "-P", port, "-u", user]).env("MYSQL_PWD", password);
        mariadb.arg(database);
        mariadb
    };
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = piped.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    child.stdin.take().unwrap().write_all(sql.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn polylock<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    let mut command = Command::new(cargo::polylock());
    command.env_remove("POLYLOCK_STORE").env("POLYLOCK_CONFIG", "/dev/null").stdin(Stdio::null());
    command.args(arguments).output().unwrap()
}

fn stdout_of(output: &Output) -> String {
    assert!(output.stderr.is_empty() && output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn assert_success(output: &Output) {
    assert!(output.status.success(), "{output:?}");
}

/// Returns the error of a refused command, which is one line.
fn refusal(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(77), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(!text.contains(PASSWORD), "{text}");
    text
}

async fn a_user_who_may_not_create_tables_gets_the_remedy_and_then_locks(store: &str) {
    let Some(db) = TestDatabase::create(store) else { return needs_nothing(store).await };
    let run = |command: &str| db.polylock(&["run", "--ttl", TTL, "x", "-c", command]);
    let refused = refusal(&run("true"));
    assert!(refused.contains("the statements that `polylock schema` prints"), "{refused}");
    // A program without a command line beside it finds the statements in the error.
    let statements = polylock::schema(&db.weak).unwrap().unwrap();
    let error = Locks::connect(&db.weak).await.unwrap_err();
    let chain = iter::successors(Some(&error as &(dyn Error + 'static)), |error| (*error).source());
    let causes: Vec<String> = chain.map(ToString::to_string).collect();
    assert!(causes.iter().any(|cause| cause.contains(&statements)), "{causes:?}");

    // The administrator does so, and to do it again harms nothing.
    let printed = stdout_of(&db.polylock(&["schema"]));
    assert!(printed == statements, "what is printed is what the library has: {printed}");
    for _ in 0..2 {
        db.administer(&printed);
    }
    if db.is_postgres() {
        refusal(&run("true"));
        db.grants().iter().for_each(|grant| db.administer(grant));
    }

    // To hold and to wait beyond the first lease, ...
    let locks = Locks::connect(&db.weak).await.unwrap();
    let start = |more: &[&str]| {
        let arguments = ["-S", &db.weak, "run", "--ttl", TTL, "--wait", "20s", "x", "--"];
        Process::start(cargo::polylock(), arguments.iter().chain(more))
    };
    let mut holder = start(&["sh", "-c", "echo held; read go"]);
    holder.expect_line("held");
    let mut waiter = start(&["sh", "-c", "echo held; sleep 60"]);
    until("both have gone on for longer than a lease", async || {
        let lock = locks.inspect("x").await.unwrap();
        lock.waiters.first().is_some_and(|waiter| waiter.age > Duration::from_millis(2500))
    })
    .await;
    // ... to hand over, ...
    holder.send_line("go");
    assert!(holder.wait_for_exit().success());
    waiter.expect_line("held");
    // ... to sweep expired rows, ...
    waiter.kill();
    let mut next = start(&["sh", "-c", "echo held; sleep 60"]);
    next.expect_line("held");
    // ... and to inspect and break locks.
    assert!(stdout_of(&db.polylock(&["list"])).starts_with("x: held"));
    assert!(stdout_of(&db.polylock(&["break", "--yes", "x"])).starts_with("x: requested "));
    assert_eq!(next.wait_for_exit().code(), Some(79));
}

/// Returns the statements for the next version of the tables at `url`, and the store that uses it.
async fn next(url: &str) -> (String, Result<Locks, polylock::Error>) {
    let step = |kind| format!("ALTER TABLE {{p}}_holds ADD COLUMN made_by {kind} NOT NULL DEFAULT 'old';");
    let with_claim = |next: NextVersion| next.edit("_claim_4", "_claim_5");
    let (script, store) = if url.starts_with("postgres") {
        let config = pg::Config::new(url).unwrap();
        let config = config.next_version(with_claim(NextVersion::compatible(&step("text"))));
        (pg::schema(&config).unwrap(), pg::connect(config).await)
    } else {
        let config = mysql::Config::new(url).unwrap();
        let config = config.next_version(with_claim(NextVersion::compatible(&step("VARBINARY(9)"))));
        (mysql::schema(&config).unwrap(), mysql::connect(config).await)
    };
    (script, store.map(Locks::new))
}

async fn a_user_who_may_not_alter_tables_gets_the_remedy_at_an_upgrade(store: &str) {
    // For other stores no administrator creates the tables.
    let Some(db) = TestDatabase::create(store) else { return };
    db.administer(&stdout_of(&db.polylock(&["schema"])));
    if db.is_postgres() {
        db.grants().iter().for_each(|grant| db.administer(grant));
    }
    let uses = async |locks: &Locks| locks.lock("x").acquire().await.unwrap().release().await.unwrap();
    let old = Locks::connect(&db.weak).await.unwrap();
    uses(&old).await;
    let (script, refused) = next(&db.weak).await;
    let error = refused.unwrap_err();
    let chain = iter::successors(Some(&error as &(dyn Error + 'static)), |error| (*error).source());
    let causes: Vec<String> = chain.map(ToString::to_string).collect();
    let causes = causes.join("\n");
    assert!(causes.contains("the statements that `polylock schema` prints"), "{causes}");
    assert!(causes.contains(&script), "{causes}");
    uses(&old).await;
    uses(&Locks::connect(&db.weak).await.unwrap()).await;
    for _ in 0..2 {
        db.administer(&script);
    }
    uses(&next(&db.weak).await.1.unwrap()).await;
    uses(&old).await;
    uses(&Locks::connect(&db.weak).await.unwrap()).await;
}

async fn the_pessimistic_strategy_has_separate_tables(store: &str) {
    let Some(mut db) = TestDatabase::create(store) else { return has_one_strategy(store).await };
    let joint = if db.weak.contains('?') { '&' } else { '?' };
    db.weak.extend([joint.to_string().as_str(), "polylock.strategy=pessimistic"]);
    refusal(&db.polylock(&["run", "x", "true"]));
    db.administer(&stdout_of(&db.polylock(&["schema"])));
    if db.is_postgres() {
        refusal(&db.polylock(&["run", "x", "true"]));
        let own = |grant: &String| match grant.split_once("ON public.polylock_holds") {
            Some((rights, rest)) => {
                let (_, to) = rest.split_once(" TO ").expect("somebody");
                format!("{rights}ON public.polylock_rows, public.polylock_sessions TO {to}")
            }
            None => grant.clone(),
        };
        db.grants().iter().for_each(|grant| db.administer(&own(grant)));
    }
    let start = |command| Process::start(cargo::polylock(), ["-S", &db.weak, "run", "x", "-c", command]);
    let mut holder = start("echo held; read go");
    holder.expect_line("held");
    assert_eq!(db.polylock(&["run", "-n", "x", "true"]).status.code(), Some(75));
    let mut waiter = start("echo held");
    holder.send_line("go");
    waiter.expect_line("held");
    assert!(holder.wait_for_exit().success() && waiter.wait_for_exit().success());
}

/// Whoever may open the file makes its tables.
async fn needs_nothing(store: &str) {
    let namespace = stores::namespace(store).await;
    let output = polylock(["-S", namespace.url(), "schema"]);
    assert_success(&output);
    assert!(output.stdout.is_empty(), "{output:?}");
    assert_success(&polylock(["-S", namespace.url(), "run", "x", "true"]));
}

async fn has_one_strategy(store: &str) {
    let namespace = stores::namespace(store).await;
    let output = polylock(["-S", &namespace.url_with("polylock.strategy", "pessimistic"), "schema"]);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("polylock.strategy"), "{output:?}");
}
