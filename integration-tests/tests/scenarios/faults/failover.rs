//! Servers that reply and accept no writes for a while, as behind one address during a failover, or no credentials that they have accepted
//! before. Nobody's request ends, and nobody has to wait longer than the server.

use std::{fs, path::Path, time::Duration};

use ::redis::aio::MultiplexedConnection;
use polylock::{Fault, Locks};
use polylock_integration_tests::{
    clock, clock::pause, on_stores, refusals::describe, servers::PrivateServer,
};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};

use super::{connect, granted, use_lock, victim::Victim, waiter};

/// Much longer than all of a test.
const LONG: Duration = Duration::from_secs(60);

on_stores! {
    [postgres mariadb redis]
    [
        nobody_ends_while_a_server_accepts_no_writes
        nobody_ends_while_a_server_refuses_credentials_that_it_has_accepted
    ]
}

/// The reason for which a server refuses requests.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Refuses {
    /// It is a replica that is promoted later.
    Writes,
    /// It can't save its data to the disk.
    Saving,
    /// The user of the locks.
    User,
}

async fn nobody_ends_while_a_server_accepts_no_writes(store: &str) {
    nobody_ends(store, Refuses::Writes).await;
    if store == "redis" {
        nobody_ends(store, Refuses::Saving).await;
    }
}

async fn nobody_ends_while_a_server_refuses_credentials_that_it_has_accepted(store: &str) {
    nobody_ends(store, Refuses::User).await;
}

async fn nobody_ends(store: &str, refuses: Refuses) {
    let victim = <dyn Victim>::start(store).await;
    let admin = Admin::of(store, victim.servers()[0]).await;
    let url = admin.user_url(&victim.url(LONG));
    let (holder, others) = (connect(&url).await, connect(&url).await);
    let guard = holder.lock("held").acquire().await.unwrap();
    let waiting = waiter(&others, "held", &holder).await;
    let ended = holder.lock("ended").acquire().await.unwrap();

    admin.begin(refuses, victim.servers()[0]).await;
    let (fault, text) = describe(&others.lock("free").try_acquire().await.unwrap_err());
    let expected = if refuses == Refuses::User { Fault::Revoked } else { Fault::Temporary };
    assert!(fault == Some(expected) && !text.contains("will not help"), "{fault:?}: {text}");
    let try_that_waits_for_the_store =
        tokio::spawn(others.lock("free").outage(LONG).wait(Duration::ZERO).acquire());
    let release = tokio::spawn(ended.release());
    let newcomer = tokio::spawn({
        let url = url.clone();
        async move {
            let locks = Locks::builder(&url).outage(LONG).connect().await?;
            locks.lock("new").acquire().await?.release().await
        }
    });
    pause(Duration::from_millis(1500)).await;
    let is_over = [waiting.is_finished(), try_that_waits_for_the_store.is_finished(), release.is_finished()];
    assert_eq!(is_over, [false; 3], "waiting, a try, a release");
    if refuses == Refuses::User {
        // A program whose credentials have never been accepted is told at once.
        assert_eq!(describe(&newcomer.await.unwrap().unwrap_err()).0, Some(Fault::Denied));
        admin.end(refuses).await;
    } else {
        assert!(!newcomer.is_finished(), "{:?}", newcomer.await);
        let fast = Locks::builder(&url).outage(Duration::ZERO).connect().await;
        let fast = match fast {
            // Redis accepts connections.
            Ok(locks) => locks.lock("new").try_acquire().await.map(drop),
            Err(error) => Err(error),
        };
        assert!(fast.unwrap_err().is_temporary());
        admin.end(refuses).await;
        newcomer.await.unwrap().unwrap();
    }

    release.await.unwrap().unwrap();
    try_that_waits_for_the_store.await.unwrap().unwrap().release().await.unwrap();
    assert!(guard.renewed().await.is_some());
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let (next, _) = granted(waiting).await;
    assert!(next.fencing_token() > token);
    next.release().await.unwrap();
    for name in ["ended", "free", "new"] {
        use_lock(&others, name).await;
    }
    victim.wait_until_empty().await;
}

/// A connection with all rights; the locks are used by a user with fewer.
enum Admin {
    Postgres { url: String },
    MySql(tokio::sync::Mutex<MySqlConnection>),
    Redis(MultiplexedConnection),
}

impl Admin {
    async fn of(store: &str, server: &PrivateServer) -> Self {
        match store {
            "postgres" => {
                let this = Self::Postgres { url: server.url().to_owned() };
                this.run("CREATE ROLE app LOGIN; GRANT ALL ON SCHEMA public TO app").await;
                this
            }
            "mariadb" => {
                let this = Self::MySql(tokio::sync::Mutex::new(
                    MySqlConnection::connect(server.url()).await.unwrap(),
                ));
                this.run("CREATE USER app").await;
                this.run("GRANT ALL ON polylock.* TO app").await;
                this
            }
            _ => {
                Self::Redis(polylock_integration_tests::servers::redis::connect(server.url()).await.unwrap())
            }
        }
    }

    fn user_url(&self, url: &str) -> String {
        match self {
            Self::Postgres { .. } => url.replace("postgres@", "app@"),
            Self::MySql(_) => url.replace("root@", "app@"),
            Self::Redis(_) => url.to_owned(),
        }
    }

    /// Runs a statement, or a command, in which `+` is a blank within a word.
    async fn run(&self, text: &str) {
        match self {
            Self::Postgres { url } => {
                let mut connection = PgConnection::connect(url).await.unwrap();
                connection.execute(sqlx::raw_sql(AssertSqlSafe(text.to_owned()))).await.unwrap();
            }
            Self::MySql(connection) => {
                let mut connection = connection.lock().await;
                connection.execute(sqlx::raw_sql(AssertSqlSafe(text.to_owned()))).await.unwrap();
            }
            Self::Redis(connection) => {
                let mut words = text.split(' ').map(|word| word.replace('+', " "));
                let mut command = ::redis::cmd(&words.next().unwrap());
                command.arg(words.collect::<Vec<_>>()).exec_async(&mut connection.clone()).await.unwrap();
            }
        }
    }

    async fn begin(&self, refuses: Refuses, server: &PrivateServer) {
        match (self, refuses) {
            (Self::Postgres { .. }, Refuses::User) => {
                self.run("ALTER ROLE app NOLOGIN").await;
                self.run(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'app'",
                )
                .await;
            }
            (Self::Postgres { .. }, _) => {
                tokio::task::block_in_place(|| {
                    server.kill();
                    // It starts as a replica of itself, and is promoted later.
                    let signal = server.directory().join("data/standby.signal");
                    fs::write(&signal, "").unwrap();
                    let owner = fs::metadata(server.directory().join("data")).unwrap();
                    set_owner(&signal, &owner);
                    server.restart();
                });
            }
            (Self::MySql(_), Refuses::User) => {
                self.run("ALTER USER app ACCOUNT LOCK").await;
                self.run("KILL USER app").await;
            }
            (Self::MySql(_), _) => self.run("SET GLOBAL read_only = 1").await,
            (Self::Redis(_), Refuses::Writes) => self.run("REPLICAOF 127.0.0.1 1").await,
            (Self::Redis(_), Refuses::User) => {
                self.run("CONFIG SET requirepass secret").await;
                self.run("CLIENT KILL TYPE normal SKIPME yes").await;
                self.run("CLIENT KILL TYPE pubsub SKIPME yes").await;
            }
            (Self::Redis(_), Refuses::Saving) => {
                self.run("SET some-key some-value").await;
                self.run("CONFIG SET save 3600+1").await;
                self.run("CONFIG SET rdb-key-save-delay 60000000").await;
                self.run("BGSAVE").await;
                let id = server.id().unwrap();
                let children = || fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
                clock::until("a child saves", async || !children().is_empty()).await;
                for child in children().split_whitespace() {
                    kill_process(Pid::from_raw(child.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
                }
                clock::until("it has failed", async || self.info("rdb_last_bgsave_status").await == "err")
                    .await;
            }
        }
    }

    async fn end(&self, refuses: Refuses) {
        match (self, refuses) {
            (Self::Postgres { .. }, Refuses::User) => self.run("ALTER ROLE app LOGIN").await,
            (Self::Postgres { .. }, _) => self.run("SELECT pg_promote()").await,
            (Self::MySql(_), Refuses::User) => self.run("ALTER USER app ACCOUNT UNLOCK").await,
            (Self::MySql(_), _) => self.run("SET GLOBAL read_only = 0").await,
            (Self::Redis(_), Refuses::Writes) => self.run("REPLICAOF NO ONE").await,
            (Self::Redis(_), Refuses::User) => self.run("CONFIG SET requirepass ").await,
            (Self::Redis(_), Refuses::Saving) => {
                self.run("CONFIG SET rdb-key-save-delay 0").await;
                self.run("BGSAVE").await;
                clock::until("it is saved", async || self.info("rdb_last_bgsave_status").await == "ok").await;
                self.run("DEL some-key").await;
            }
        }
    }

    async fn info(&self, key: &str) -> String {
        let Self::Redis(connection) = self else { unreachable!() };
        let info: ::redis::InfoDict =
            ::redis::cmd("INFO").query_async(&mut connection.clone()).await.unwrap();
        info.get(key).unwrap()
    }
}

fn set_owner(file: &Path, owner: &fs::Metadata) {
    use std::os::unix::fs::MetadataExt;
    std::os::unix::fs::chown(file, Some(owner.uid()), Some(owner.gid())).unwrap();
}
