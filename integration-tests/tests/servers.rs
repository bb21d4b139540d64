//! The servers that other tests rely on: what is said of them is true, and nothing of them stays behind.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::HashSet,
    error::Error,
    fs,
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    panic,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use ::redis::{Client, Cmd, FromRedisValue, TlsCertificates, Value, aio::MultiplexedConnection};
use polylock_integration_tests::{
    clock::{self, PATIENCE},
    process::Process,
    servers::{Private, Server, mariadb, pgbouncer, postgres, redis, redlock, valkey},
};
use polylock_testkit::Missing;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use sqlx::{Connection, Executor, MySqlConnection, PgConnection, Row};
use tempfile::TempDir;

type Start = fn(&[&str]) -> Result<Private, Missing>;

const KINDS: [(&str, Start); 4] = [
    ("postgres", postgres::start),
    ("mariadb", mariadb::start),
    // What it keeps is a setting.
    ("redis", |settings| redis::start(&[redis::DURABLE, settings].concat())),
    ("valkey", |settings| valkey::start(&[redis::DURABLE, settings].concat())),
];

type Answer<T> = Result<T, Box<dyn Error>>;

/// A connection to a server of any kind.
enum Session {
    Postgres(PgConnection),
    MariaDb(MySqlConnection),
    Redis(MultiplexedConnection),
}

impl Session {
    async fn open(url: &str) -> Answer<Self> {
        Ok(match url.split_once(':') {
            Some(("postgres", _)) => Self::Postgres(PgConnection::connect(url).await?),
            Some(("mysql", _)) => Self::MariaDb(MySqlConnection::connect(url).await?),
            _ => {
                let mut session = Client::open(url)?.get_multiplexed_async_connection().await?;
                // A frozen server is waited for.
                session.set_response_timeout(PATIENCE);
                Self::Redis(session)
            }
        })
    }

    /// A statement of SQL or a command of Redis.
    async fn run(&mut self, statement: &'static str) -> Answer<()> {
        match self {
            Self::Postgres(session) => session.execute(sqlx::raw_sql(statement)).await.map(drop)?,
            Self::MariaDb(session) => session.execute(sqlx::raw_sql(statement)).await.map(drop)?,
            Self::Redis(session) => command(statement).exec_async(session).await?,
        }
        Ok(())
    }

    /// The one value that `query` gives, a text; the last one in Redis.
    async fn ask(&mut self, query: &'static str) -> Answer<String> {
        Ok(match self {
            Self::Postgres(session) => session.fetch_one(sqlx::raw_sql(query)).await?.try_get(0)?,
            Self::MariaDb(session) => session.fetch_one(sqlx::raw_sql(query)).await?.try_get(0)?,
            Self::Redis(session) => last(command(query).query_async(session).await?)?,
        })
    }

    /// Keeps the text `seven` for [`kept`](Self::kept).
    async fn keep(&mut self) -> Answer<()> {
        if let Self::Redis(_) = self {
            return self.run("SET kept seven").await;
        }
        self.run("CREATE TABLE kept (n VARCHAR(9))").await?;
        self.run("INSERT INTO kept VALUES ('seven')").await
    }

    async fn kept(&mut self) -> Answer<String> {
        self.ask(if let Self::Redis(_) = self { "GET kept" } else { "SELECT n FROM kept" }).await
    }

    /// Has the server say `it`.
    async fn echo(&mut self) -> Answer<String> {
        self.ask(if let Self::Redis(_) = self { "ECHO it" } else { "SELECT 'it'" }).await
    }
}

fn command(words: &str) -> Cmd {
    let mut command = Cmd::new();
    for word in words.split(' ') {
        command.arg(word);
    }
    command
}

/// The text or number, or the last one of a list.
fn last(answer: Value) -> Answer<String> {
    let one = match answer {
        Value::Array(list) => list.into_iter().next_back().ok_or("an empty list")?,
        one => one,
    };
    Ok(String::from_redis_value(one)?)
}

async fn ask(url: &str, query: &'static str) -> String {
    Session::open(url).await.unwrap().ask(query).await.unwrap()
}

async fn kept(url: &str) -> String {
    Session::open(url).await.unwrap().kept().await.unwrap()
}

/// The parent of each process that has not ended.
fn parents() -> Vec<(u32, u32)> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let stats = processes.filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
    stats
        .filter_map(|stat| {
            let (name, rest) = stat.rsplit_once(") ")?;
            let mut rest = rest.split(' ');
            let (state, parent) = (rest.next()?, rest.next()?);
            (!["Z", "X"].contains(&state)).then_some(())?;
            Some((name.split_once(' ')?.0.parse().ok()?, parent.parse().ok()?))
        })
        .collect()
}

/// The process `id` and those that it has started.
fn family(id: u32) -> Vec<u32> {
    let children = parents().into_iter().filter(|(_, parent)| *parent == id).map(|(child, _)| child);
    [id].into_iter().chain(children).collect()
}

fn all_gone(family: &[u32]) -> bool {
    parents().iter().all(|(process, _)| !family.contains(process))
}

fn nobody_listens(url: &str) -> bool {
    let address = url.split(['@', '/']).find(|part| part.starts_with("127.0.0.1:")).unwrap();
    TcpStream::connect(address).is_err()
}

#[tokio::test]
async fn a_killed_server_comes_back_with_its_data() {
    for (name, start) in KINDS {
        let server = start(&[]).unwrap();
        let mut session = Session::open(server.url()).await.unwrap();
        session.keep().await.unwrap();

        let family = family(server.id().unwrap());
        assert!(name != "postgres" || family.len() > 4, "its helpers count: {family:?}");
        server.kill();
        assert!(all_gone(&family), "{name}: {family:?} has left some");
        assert!(nobody_listens(server.url()), "{name}");
        session.kept().await.expect_err("its connections are dead");

        server.restart();
        assert_eq!(kept(server.url()).await, "seven", "{name}");
        server.restart();
        assert_eq!(kept(server.url()).await, "seven", "{name}: restarted while it ran");
    }
}

#[tokio::test]
async fn a_redis_that_keeps_nothing_comes_back_empty() {
    for start in [redis::start, valkey::start] {
        let server = start(&[]).unwrap();
        Session::open(server.url()).await.unwrap().keep().await.unwrap();
        server.restart();
        let mut session = Session::open(server.url()).await.unwrap();
        assert_eq!(session.ask("EXISTS kept").await.unwrap(), "0");
    }
}

#[tokio::test]
async fn a_frozen_server_answers_when_it_is_thawed() {
    for (name, start) in KINDS {
        let server = start(&[]).unwrap();
        let mut session = Session::open(server.url()).await.unwrap();
        server.freeze();
        let mut asking = Box::pin(session.echo());
        let early = tokio::time::timeout(Duration::from_millis(200), &mut asking).await;
        assert!(early.is_err(), "{name}: answered while frozen: {early:?}");
        server.thaw();
        let answer = tokio::time::timeout(PATIENCE, asking).await.expect("it answers again");
        assert_eq!(answer.unwrap(), "it", "{name}");
        // One that is frozen can be killed, too.
        let family = family(server.id().unwrap());
        server.freeze();
        server.kill();
        assert!(all_gone(&family), "{name}: {family:?} has left some");
        server.restart();
        assert_eq!(Session::open(server.url()).await.unwrap().echo().await.unwrap(), "it", "{name}");
    }
}

#[tokio::test]
async fn settings_reach_the_server() {
    let server = postgres::start(&["default_transaction_isolation=serializable"]).unwrap();
    assert_eq!(ask(server.url(), "SHOW default_transaction_isolation").await, "serializable");
    let server =
        mariadb::start(&["innodb_flush_log_at_trx_commit=2", "transaction_isolation=SERIALIZABLE"]).unwrap();
    assert_eq!(ask(server.url(), "SELECT @@tx_isolation").await, "SERIALIZABLE");
    let flush = "SELECT CAST(@@innodb_flush_log_at_trx_commit AS CHAR)";
    assert_eq!(ask(server.url(), flush).await, "2");
    for start in [redis::start, valkey::start] {
        let server = start(&["maxmemory-policy allkeys-lru", "maxmemory 90mb"]).unwrap();
        assert_eq!(ask(server.url(), "CONFIG GET maxmemory-policy").await, "allkeys-lru");
        assert_eq!(ask(server.url(), "CONFIG GET maxmemory").await, "94371840");
    }
}

#[tokio::test]
async fn a_redis_may_ask_who_it_is() {
    let users = ["user default off", "user app on >s3cret ~* &* +@all"];
    for (user, settings) in [("app:s3cret", &users[..]), (":s3cret", &["requirepass s3cret"])] {
        let server = redis::start_as(user, settings).unwrap();
        server.restart();
        assert_eq!(Session::open(server.url()).await.unwrap().echo().await.unwrap(), "it");
        let stranger = server.url().replace("s3cret", "wrong");
        assert!(Session::open(&stranger).await.is_err(), "{user}");
    }
}

#[tokio::test]
async fn what_a_shared_server_acknowledges_is_durable() {
    let server = postgres().unwrap();
    for query in ["SHOW fsync", "SHOW synchronous_commit", "SHOW full_page_writes"] {
        assert_eq!(ask(server.url(), query).await, "on", "{query}");
    }
    let nodes = redlock().unwrap();
    assert_eq!(nodes.len(), 5);
    for server in nodes.iter().chain([redis().unwrap(), valkey().unwrap()]) {
        assert_eq!(ask(server.url(), "CONFIG GET appendonly").await, "yes");
        assert_eq!(ask(server.url(), "CONFIG GET appendfsync").await, "always");
        assert_eq!(ask(server.url(), "CONFIG GET maxmemory-policy").await, "noeviction");
    }
    let server = mariadb().unwrap();
    for (query, default) in [
        ("SELECT CAST(@@innodb_flush_log_at_trx_commit AS CHAR)", "1"),
        ("SELECT CAST(@@innodb_doublewrite AS CHAR)", "ON"),
    ] {
        assert_eq!(ask(server.url(), query).await, default, "{query}");
    }
}

#[test]
fn a_server_that_does_not_start_shows_its_log() {
    for (name, start) in KINDS {
        let started = panic::catch_unwind(|| start(&["no_such_setting=1"]));
        let message = *started.expect_err("it must not start").downcast::<String>().unwrap();
        assert!(message.contains("no_such_setting") && message.contains("it has ended"), "{name}: {message}");
    }
}

#[tokio::test]
async fn a_pooler_shares_one_backend_among_its_clients() {
    let server = postgres::start(&[]).unwrap();
    let pooler = pgbouncer::start(&server, &["default_pool_size=1"]).unwrap();
    let backend = "SELECT pg_backend_pid()::text";
    let (mut one, mut two) =
        (Session::open(pooler.url()).await.unwrap(), Session::open(pooler.url()).await.unwrap());
    assert_eq!(one.ask(backend).await.unwrap(), two.ask(backend).await.unwrap());
    let (mut one, mut two) =
        (Session::open(server.url()).await.unwrap(), Session::open(server.url()).await.unwrap());
    assert_ne!(one.ask(backend).await.unwrap(), two.ask(backend).await.unwrap());
}

#[tokio::test]
async fn a_servers_certificate_is_signed_by_its_own_authority() {
    for (start, other, mode, root, encrypted) in [
        (
            postgres::start_tls as Start,
            postgres::start_tls as Start,
            "sslmode=verify-full",
            "sslrootcert",
            "SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
        ),
        (
            mariadb::start_tls,
            mariadb::start_tls,
            "ssl-mode=VERIFY_IDENTITY",
            "ssl-ca",
            "SELECT IF(variable_value > '', 'true', 'false') FROM information_schema.session_status \
             WHERE variable_name = 'Ssl_cipher'",
        ),
    ] {
        let (server, other) = (start(&[]).unwrap(), other(&[]).unwrap());
        let with = |authority: &Private| {
            let authority = authority.directory().join("ca.crt");
            format!("{}?{mode}&{root}={}", server.url(), authority.display())
        };
        assert_eq!(ask(&with(&server), encrypted).await, "true");
        let refused = Session::open(&with(&other)).await.map(drop).expect_err("a stranger's");
        assert!(refused.to_string().contains("certificate"), "{refused}");
    }
}

#[tokio::test]
async fn a_redis_with_tls_speaks_nothing_else() {
    let (server, other) = (redis::start_tls(&[]).unwrap(), redis::start_tls(&[]).unwrap());
    assert!(server.url().starts_with("rediss://"), "{}", server.url());
    let ask = async |url: &str, authority: &Private| {
        let authority = fs::read(authority.directory().join("ca.crt"))?;
        let client =
            Client::build_with_tls(url, TlsCertificates { client_tls: None, root_cert: Some(authority) })?;
        Session::Redis(client.get_multiplexed_async_connection().await?).ask("CONFIG GET port").await
    };
    assert_eq!(ask(server.url(), &server).await.unwrap(), "0");
    let by_name = server.url().replace("127.0.0.1", "localhost");
    assert_eq!(ask(&by_name, &server).await.unwrap(), "0");
    let refused = ask(server.url(), &other).await.expect_err("a stranger's");
    assert!(format!("{refused:?}").contains("ertificate"), "{refused:?}");
    let plain = server.url().replace("rediss:", "redis:");
    assert!(Session::open(&plain).await.is_err(), "without TLS");
    server.restart();
    assert_eq!(ask(server.url(), &server).await.unwrap(), "0");
}

#[tokio::test]
async fn nodes_are_independent() {
    let nodes = redlock::start(3, redis::DURABLE).unwrap();
    Session::open(nodes[0].url()).await.unwrap().keep().await.unwrap();
    nodes[1].freeze();
    nodes[2].kill();
    assert_eq!(kept(nodes[0].url()).await, "seven");
    nodes[1].thaw();
    nodes[2].restart();
    for node in &nodes[1..] {
        assert_eq!(ask(node.url(), "EXISTS kept").await, "0");
    }
    let url = redlock::url(nodes.iter().map(|node| node.url()));
    let hosts = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect::<Vec<_>>().join(",");
    assert_eq!(url, format!("redlock://{hosts}"));
}

#[test]
fn all_tests_of_a_process_share_a_server() {
    let threads: Vec<_> = (0..4).map(|_| thread::spawn(|| redlock().unwrap())).collect();
    let nodes: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(nodes.iter().all(|five| std::ptr::eq(*five, nodes[0])));
    assert_eq!(nodes[0].iter().map(Server::url).collect::<HashSet<_>>().len(), 5);

    let threads: Vec<_> = (0..4).map(|_| thread::spawn(|| postgres().unwrap())).collect();
    let servers: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(servers.iter().all(|server| std::ptr::eq(*server, servers[0])));
    // And each has names of its own, which any server takes.
    let names: HashSet<_> = (0..1000).map(|i| servers[i % 4].name()).collect();
    assert_eq!(names.len(), 1000);
    let plain =
        |name: &String| name.len() < 16 && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
    assert!(names.iter().all(plain), "{names:?}");
}

/// A place for the servers of other processes, to see what they leave in it.
struct Elsewhere {
    temporary: TempDir,
    cache: TempDir,
}

impl Elsewhere {
    fn new() -> Self {
        let (temporary, cache) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        // The servers run as users of their own.
        fs::set_permissions(temporary.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self { temporary, cache }
    }

    /// Another process that has a server.
    fn start(&self, what: &[&str]) -> Process {
        let temporary = format!("TMPDIR={}", self.temporary.path().display());
        let cache = format!("POLYLOCK_TEST_CACHE={}", self.cache.path().display());
        // A process group of its own.
        let program = ["env", &temporary, &cache, env!("CARGO_BIN_EXE_server")];
        Process::start("setsid", program.iter().chain(what))
    }

    /// What is in the directory for servers.
    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(&self.temporary).unwrap().flatten().map(|entry| entry.path()).collect()
    }

    /// The processes that know of it.
    fn processes(&self) -> Vec<PathBuf> {
        let place = self.temporary.path().to_str().unwrap();
        let knows = |process: &PathBuf| {
            ["cmdline", "environ"].iter().any(|file| {
                let text = fs::read(process.join(file)).unwrap_or_default();
                String::from_utf8_lossy(&text).contains(place)
            })
        };
        fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).filter(knows).collect()
    }

    fn is_clean_soon(&self, what: &str) {
        clock::within(PATIENCE, || self.files().is_empty() && self.processes().is_empty());
        let (files, processes) = (self.files(), self.processes());
        assert!(files.is_empty() && processes.is_empty(), "{what} has left {files:?} and {processes:?}");
    }
}

/// The System V memory segments that the process `id` has made.
fn segments(id: u32) -> usize {
    let list = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let creators = list.lines().filter_map(|line| line.split_whitespace().nth(4)?.parse::<u32>().ok());
    creators.filter(|creator| *creator == id).count()
}

fn signal(processes: &[u32], signal: Signal) {
    for id in processes {
        // A helper of the server may have ended meanwhile.
        kill_process(Pid::from_raw(i32::try_from(*id).unwrap()).unwrap(), signal).ok();
    }
}

/// Starts a server in another process, ends that process with `end`, and expects nothing to be left.
fn is_gone_after(name: &str, end: impl Fn(&mut Process, &[u32])) {
    let elsewhere = Elsewhere::new();
    let mut owner = elsewhere.start(&[name]);
    let id: u32 = owner.hears("process")[0].parse().unwrap();
    let directory = owner.hears("directory").remove(0);
    let url = owner.hears("url").remove(0);
    let family = family(id);
    assert!(Path::new(&directory).is_dir() && !nobody_listens(&url) && !elsewhere.processes().is_empty());
    assert_eq!(segments(id), usize::from(name == "postgres"), "{name}");

    end(&mut owner, &family);
    elsewhere.is_clean_soon(name);
    assert!(clock::within(PATIENCE, || all_gone(&family)), "{name}: {family:?} has left some");
    assert!(nobody_listens(&url), "{name}");
    assert_eq!(segments(id), 0, "{name}: memory");
}

#[test]
fn nothing_outlives_a_killed_owner() {
    for (name, _) in KINDS {
        is_gone_after(name, |owner, _| {
            owner.kill();
        });
    }
}

#[test]
fn nothing_outlives_an_owners_killed_process_group() {
    for (name, _) in KINDS {
        is_gone_after(name, |owner, _| {
            let group = Pid::from_raw(i32::try_from(owner.id()).unwrap()).unwrap();
            kill_process_group(group, Signal::KILL).unwrap();
        });
    }
}

#[test]
fn a_frozen_server_does_not_outlive_its_owner() {
    for (name, _) in KINDS {
        is_gone_after(name, |owner, family| {
            signal(family, Signal::STOP);
            owner.kill();
        });
    }
}

#[test]
fn a_shared_server_ends_with_its_process() {
    let elsewhere = Elsewhere::new();
    for (name, count) in [("postgres", 1), ("redis", 1), ("redlock", 5)] {
        let mut owner = elsewhere.start(&["shared", name]);
        owner.hears("url");
        assert!(elsewhere.files().len() == count && elsewhere.processes().len() >= 2 * count, "{name}");
        drop(owner);
        elsewhere.is_clean_soon(name);
    }
}

/// Also while it makes its template, which is then made again.
#[tokio::test]
async fn an_owner_killed_at_any_moment_of_the_start_leaves_nothing() {
    for (name, _) in KINDS {
        let elsewhere = Elsewhere::new();
        for (templates_before, moments) in [(0, [10, 100, 200, 300]), (1, [80, 120, 170, 230])] {
            if templates_before > 0 {
                elsewhere.start(&[name]).hears("process");
            }
            assert_eq!(templates(&elsewhere), templates_before * templates_of(name), "{name}");
            for moment in moments {
                let mut owner = elsewhere.start(&[name]);
                clock::pause(Duration::from_millis(moment)).await;
                owner.kill();
                elsewhere.is_clean_soon(&format!("{name}, killed after {moment} ms"));
            }
        }
    }
}

#[test]
fn a_template_is_whole_though_its_maker_is_killed_while_it_is_written() {
    for (name, _) in KINDS.into_iter().filter(|(name, _)| templates_of(name) > 0) {
        let elsewhere = Elsewhere::new();
        let mut maker = elsewhere.start(&[name]);
        assert!(clock::within(PATIENCE, || templates(&elsewhere) > 0), "{name} writes none");
        maker.kill();
        elsewhere.start(&[name]).hears("process");
        elsewhere.is_clean_soon(name);
        assert_eq!(templates(&elsewhere), 1, "{name}");
    }
}

/// How many templates there are; anything else in their directory is one too many, too.
fn templates(elsewhere: &Elsewhere) -> usize {
    fs::read_dir(&elsewhere.cache).unwrap().count()
}

/// How many the servers of a kind keep. Redis starts from nothing.
fn templates_of(name: &str) -> usize {
    usize::from(["postgres", "mariadb"].contains(&name))
}

#[test]
fn two_processes_may_start_their_first_server_at_once() {
    for (name, _) in KINDS {
        let elsewhere = Elsewhere::new();
        let mut owners = [(); 2].map(|()| elsewhere.start(&[name]));
        let urls = owners.each_mut().map(|owner| {
            owner.hears("process");
            owner.hears("directory");
            owner.hears("url")
        });
        assert_ne!(urls[0], urls[1]);
        assert_eq!(templates(&elsewhere), templates_of(name), "{name}");
        drop(owners);
        elsewhere.is_clean_soon(name);
    }
}

#[test]
fn a_url_in_the_environment_is_attached_to() {
    for (variable, name) in [
        ("POLYLOCK_TEST_POSTGRES_URL", "postgres"),
        ("POLYLOCK_TEST_MYSQL_URL", "mariadb"),
        ("POLYLOCK_TEST_REDIS_URL", "redis"),
        ("POLYLOCK_TEST_VALKEY_URL", "valkey"),
    ] {
        let value = format!("{variable}={name}://me:secret@elsewhere/");
        let mut attached = Process::start("env", [&value, env!("CARGO_BIN_EXE_server"), "shared", name]);
        assert_eq!(attached.hears("url"), [format!("{name}://me:secret@elsewhere/")]);
    }
    let redlock = |url: &str| {
        let value = format!("POLYLOCK_TEST_REDLOCK_URL={url}");
        Process::start("env", [&value, env!("CARGO_BIN_EXE_server"), "shared", "redlock"])
    };
    let five = "redlock://me:secret@a:1,b:2,c:3,d:4,e:5/0?k=v";
    assert_eq!(redlock(five).hears("url"), [five]);
    // Fewer would be another test than the one that is asked for.
    assert!(!redlock("redlock://a:1,b:2,c:3").ends().success());
}
