//! The floor: what the same driver takes for the two statements that no lock can do without.

mod blobs;

use std::{path::Path, time::Duration};

use futures_util::{StreamExt, future::join, stream::FuturesUnordered};
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, Script, aio::MultiplexedConnection, io::tcp::TcpSettings,
};
use sqlx::{
    ConnectOptions, Connection, Executor, MySql, MySqlConnection, PgConnection, Pool, Postgres,
    SqliteConnection,
    mysql::{MySqlConnectOptions, MySqlPoolOptions},
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};
use zookeeper_client::{Acls, CreateMode, CreateOptions, Error as Failure};

use self::blobs::Blobs;

/// `INSERT` and `DELETE`, prepared, each a transaction of its own, with the settings that the store has; or what Redis' own
/// page on locks says: `SET NX PX` and a script that compares and deletes;
/// or ZooKeeper's: create a node, list, and delete it; or Azure's: acquire a lease, write under it, and release it.
pub(crate) enum Raw {
    /// On connections of its own: two where the release is less durable than the grant.
    Sqlite(SqliteConnection, Option<SqliteConnection>),
    /// On connections of its own.
    Postgres(PgConnection, PgConnection),
    /// On connections of its own.
    MySql(MySqlConnection),
    /// On a pool of the driver, as programs use it.
    PostgresPool(Pool<Postgres>),
    /// On a pool of the driver, as programs use it.
    MySqlPool(Pool<MySql>),
    /// On one connection.
    Redis(MultiplexedConnection, Script),
    /// On one connection to each node: to all at once, until a majority has answered.
    Redlock(Vec<MultiplexedConnection>, Script),
    /// In one session. If it is set, the create and the list are sent at once.
    ZooKeeper(zookeeper_client::Client, bool),
    /// On one pool.
    Azure(Blobs),
}

const POSTGRES_TABLE: &str = "CREATE TABLE IF NOT EXISTS raw (
    name bytea PRIMARY KEY, owner bytea NOT NULL, expires_at bigint NOT NULL)";
const MYSQL_TABLE: &str = "CREATE TABLE IF NOT EXISTS raw (
    name varbinary(255) PRIMARY KEY, owner binary(16) NOT NULL, expires_at bigint NOT NULL) ENGINE=InnoDB";

impl Raw {
    pub(crate) async fn sqlite(file: &Path, grant: SqliteSynchronous, release: SqliteSynchronous) -> Self {
        let connect = async |synchronous| {
            let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
            let options = options.journal_mode(SqliteJournalMode::Wal).synchronous(synchronous);
            SqliteConnection::connect_with(&options).await.unwrap()
        };
        let mut insert = connect(grant).await;
        let table = "CREATE TABLE IF NOT EXISTS raw (
            name BLOB PRIMARY KEY, owner BLOB NOT NULL, expires_at INTEGER NOT NULL) STRICT";
        insert.execute(table).await.unwrap();
        let same = matches!(
            (grant, release),
            (SqliteSynchronous::Full, SqliteSynchronous::Full)
                | (SqliteSynchronous::Normal, SqliteSynchronous::Normal)
        );
        Self::Sqlite(insert, if same { None } else { Some(connect(release).await) })
    }

    /// With `synchronous_commit` as it is said.
    pub(crate) async fn postgres_pool(url: &str, synchronous_commit: &str) -> Self {
        let options = postgres(url, synchronous_commit);
        // Without its sign of life before each use, which would be one more round trip.
        let pool = PgPoolOptions::new().test_before_acquire(false).connect_with(options).await.unwrap();
        pool.execute(POSTGRES_TABLE).await.unwrap();
        Self::PostgresPool(pool)
    }

    /// With `synchronous_commit` as it is said for the grant, and off for the release, as ours is.
    pub(crate) async fn postgres(url: &str, synchronous_commit: &str) -> Self {
        let mut insert = postgres(url, synchronous_commit).connect().await.unwrap();
        insert.execute(POSTGRES_TABLE).await.unwrap();
        Self::Postgres(insert, postgres(url, "off").connect().await.unwrap())
    }

    pub(crate) async fn mysql_pool(url: &str) -> Self {
        let options: MySqlConnectOptions = url.parse().unwrap();
        let pool = MySqlPoolOptions::new().test_before_acquire(false).connect_with(options).await.unwrap();
        pool.execute(MYSQL_TABLE).await.unwrap();
        Self::MySqlPool(pool)
    }

    pub(crate) async fn mysql(url: &str) -> Self {
        let mut connection = MySqlConnection::connect(url).await.unwrap();
        connection.execute(MYSQL_TABLE).await.unwrap();
        Self::MySql(connection)
    }

    pub(crate) async fn redis(url: &str) -> Self {
        Self::Redis(redis(url).await, compare_and_delete())
    }

    pub(crate) async fn redlock(urls: &[String]) -> Self {
        let mut nodes = Vec::new();
        for url in urls {
            nodes.push(redis(url).await);
        }
        Self::Redlock(nodes, compare_and_delete())
    }

    pub(crate) async fn zookeeper(url: &str, at_once: bool) -> Self {
        let (_, servers) = url.split_once("://").unwrap();
        // As long as ours are by default.
        let connector = zookeeper_client::Client::connector().with_session_timeout(Duration::from_secs(30));
        let client = connector.connect(servers).await.unwrap();
        match client.create("/raw", b"", &KEPT).await {
            Ok(_) | Err(Failure::NodeExists) => Self::ZooKeeper(client, at_once),
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) async fn azure(url: &str) -> Self {
        Self::Azure(Blobs::of(url).await)
    }

    /// The same pool, connection or session for another task, where tasks may share it.
    pub(crate) fn shared(&self) -> Option<Self> {
        Some(match self {
            Self::Sqlite(..) | Self::Postgres(..) | Self::MySql(..) => return None,
            Self::PostgresPool(pool) => Self::PostgresPool(pool.clone()),
            Self::MySqlPool(pool) => Self::MySqlPool(pool.clone()),
            Self::Redis(connection, script) => Self::Redis(connection.clone(), script.clone()),
            Self::Redlock(nodes, script) => Self::Redlock(nodes.clone(), script.clone()),
            Self::ZooKeeper(client, at_once) => Self::ZooKeeper(client.clone(), *at_once),
            Self::Azure(blobs) => Self::Azure(blobs.clone()),
        })
    }

    pub(crate) async fn pair(&mut self, name: &[u8], owner: [u8; 16]) {
        let (name, owner) = (name.to_vec(), owner.to_vec());
        match self {
            Self::Sqlite(insert, delete) => {
                let query = sqlx::query("INSERT INTO raw VALUES (?1, ?2, ?3)");
                let query = query.bind(&name).bind(&owner).bind(i64::MAX);
                query.execute(&mut *insert).await.unwrap();
                let query = sqlx::query("DELETE FROM raw WHERE name = ?1 AND owner = ?2");
                query.bind(name).bind(owner).execute(delete.as_mut().unwrap_or(insert)).await.unwrap();
            }
            Self::Postgres(insert, delete) => {
                insert_postgres(insert, &name, &owner).await;
                delete_postgres(delete, &name, &owner).await;
            }
            Self::PostgresPool(pool) => {
                insert_postgres(&*pool, &name, &owner).await;
                delete_postgres(&*pool, &name, &owner).await;
            }
            Self::MySql(connection) => {
                insert_mysql(&mut *connection, &name, &owner).await;
                delete_mysql(connection, &name, &owner).await;
            }
            Self::MySqlPool(pool) => {
                insert_mysql(&*pool, &name, &owner).await;
                delete_mysql(&*pool, &name, &owner).await;
            }
            Self::Redis(connection, script) => {
                set_nx(connection.clone(), &name, &owner).await;
                delete_mine(connection.clone(), script, &name, &owner).await;
            }
            Self::Redlock(nodes, script) => {
                let sets = nodes.iter().map(|node| set_nx(node.clone(), &name, &owner));
                majority(sets.collect(), nodes.len()).await;
                let deletes = nodes.iter().map(|node| delete_mine(node.clone(), script, &name, &owner));
                majority(deletes.collect(), nodes.len()).await;
            }
            Self::ZooKeeper(client, at_once) => node(client, *at_once, &name, &owner).await,
            Self::Azure(blobs) => {
                let owner = u128::from_be_bytes(owner.try_into().unwrap());
                blobs.pair(str::from_utf8(&name).unwrap(), owner).await;
            }
        }
    }
}

impl Raw {
    /// The script of a release alone, which finds nothing: one round trip to Redis.
    pub(crate) async fn script(&mut self, name: &[u8], owner: [u8; 16]) {
        if let Self::Redis(connection, script) = self {
            delete_mine(connection.clone(), script, name, &owner).await;
        }
    }
}

fn postgres(url: &str, synchronous_commit: &str) -> PgConnectOptions {
    let options: PgConnectOptions = url.parse().unwrap();
    options.options([("synchronous_commit", synchronous_commit)])
}

async fn insert_postgres<'c>(on: impl Executor<'c, Database = Postgres>, name: &[u8], owner: &[u8]) {
    let query = sqlx::query("INSERT INTO raw VALUES ($1, $2, $3)").bind(name).bind(owner).bind(i64::MAX);
    query.execute(on).await.unwrap();
}

async fn delete_postgres<'c>(on: impl Executor<'c, Database = Postgres>, name: &[u8], owner: &[u8]) {
    let query = sqlx::query("DELETE FROM raw WHERE name = $1 AND owner = $2").bind(name).bind(owner);
    query.execute(on).await.unwrap();
}

async fn insert_mysql<'c>(on: impl Executor<'c, Database = MySql>, name: &[u8], owner: &[u8]) {
    let query = sqlx::query("INSERT INTO raw VALUES (?, ?, ?)").bind(name).bind(owner).bind(i64::MAX);
    query.execute(on).await.unwrap();
}

async fn delete_mysql<'c>(on: impl Executor<'c, Database = MySql>, name: &[u8], owner: &[u8]) {
    let query = sqlx::query("DELETE FROM raw WHERE name = ? AND owner = ?").bind(name).bind(owner);
    query.execute(on).await.unwrap();
}

async fn redis(url: &str) -> MultiplexedConnection {
    let info: ConnectionInfo = url.parse().unwrap();
    let client = Client::open(info.set_tcp_settings(TcpSettings::default().set_nodelay(true))).unwrap();
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

/// <https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>
fn compare_and_delete() -> Script {
    Script::new(
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
    )
}

async fn set_nx(mut on: MultiplexedConnection, name: &[u8], owner: &[u8]) {
    let mut set = redis::cmd("SET");
    set.arg(name).arg(owner).arg("NX").arg("PX").arg(30_000);
    set.query_async::<()>(&mut on).await.unwrap();
}

async fn delete_mine(mut on: MultiplexedConnection, script: &Script, name: &[u8], owner: &[u8]) {
    script.key(name).arg(owner).invoke_async::<()>(&mut on).await.unwrap();
}

async fn majority<F: Future>(mut answers: FuturesUnordered<F>, nodes: usize) {
    for _ in 0..=nodes / 2 {
        answers.next().await.unwrap();
    }
}

const KEPT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());
const NUMBERED: CreateOptions<'static> = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());

/// <https://zookeeper.apache.org/doc/current/recipes.html#sc_recipes_Locks>
async fn node(client: &zookeeper_client::Client, at_once: bool, name: &[u8], owner: &[u8]) {
    let directory = format!("/raw/{}", str::from_utf8(name).unwrap());
    let owned = u128::from_be_bytes(owner.try_into().unwrap());
    let prefix = format!("{directory}/{owned:032x}_");
    let made = client.create(&prefix, owner, &NUMBERED);
    let (made, listed) = if at_once {
        join(made, client.list_children(&directory)).await
    } else {
        let made = made.await;
        (made, client.list_children(&directory).await)
    };
    match made {
        Ok((_, number)) => {
            let (path, listed) = (format!("{prefix}{number}"), listed.unwrap());
            assert!(listed.iter().any(|child| path.ends_with(child)));
            client.delete(&path, None).await.unwrap();
        }
        // Only the first time.
        Err(Failure::NoNode) => {
            client.create(&directory, b"", &KEPT).await.unwrap();
        }
        Err(error) => panic!("{error}"),
    }
}
