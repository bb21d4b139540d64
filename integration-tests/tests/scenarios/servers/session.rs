//! A connection to a server of any kind.

use std::error::Error;

use ::redis::{Client, Cmd, FromRedisValue, Value, aio::MultiplexedConnection};
use polylock_integration_tests::{
    clock::{self, TIMEOUT},
    servers::azurite,
};
use sqlx::{Connection, Executor, MySqlConnection, PgConnection, Row};
use zookeeper_client::{Acls, Client as ZooKeeper, Connector, CreateMode, SessionState};

pub(super) type Answer<T> = Result<T, Box<dyn Error>>;

/// A connection to a server of any kind.
pub(super) enum Session {
    Postgres(PgConnection),
    MariaDb(MySqlConnection),
    Redis(MultiplexedConnection),
    ZooKeeper(ZooKeeper),
    /// Its URL: each request is a connection of its own.
    Azurite(String),
}

impl Session {
    pub(super) async fn open(url: &str) -> Answer<Self> {
        Ok(match url.split_once(':') {
            Some(("postgres", _)) => Self::Postgres(PgConnection::connect(url).await?),
            Some(("mysql", _)) => Self::MariaDb(MySqlConnection::connect(url).await?),
            Some(("zookeeper", _)) => Self::ZooKeeper(connect(ZooKeeper::connector(), hosts(url)).await?),
            Some(("az", _)) => Self::Azurite(url.to_owned()),
            _ => {
                let mut session = Client::open(url)?.get_multiplexed_async_connection().await?;
                // A frozen server is waited for.
                session.set_response_timeout(TIMEOUT);
                Self::Redis(session)
            }
        })
    }

    /// A statement of SQL or a command of Redis.
    pub(super) async fn run(&mut self, statement: &'static str) -> Answer<()> {
        match self {
            Self::Postgres(session) => session.execute(sqlx::raw_sql(statement)).await.map(drop)?,
            Self::MariaDb(session) => session.execute(sqlx::raw_sql(statement)).await.map(drop)?,
            Self::Redis(session) => command(statement).exec_async(session).await?,
            Self::ZooKeeper(_) | Self::Azurite(_) => return Err("it has no statements".into()),
        }
        Ok(())
    }

    /// The one value that `query` gives, a text; the last one in Redis.
    pub(super) async fn query(&mut self, query: &'static str) -> Answer<String> {
        Ok(match self {
            Self::Postgres(session) => session.fetch_one(sqlx::raw_sql(query)).await?.try_get(0)?,
            Self::MariaDb(session) => session.fetch_one(sqlx::raw_sql(query)).await?.try_get(0)?,
            Self::Redis(session) => last(command(query).query_async(session).await?)?,
            Self::ZooKeeper(_) | Self::Azurite(_) => return Err("it has no queries".into()),
        })
    }

    /// Keeps the text `seven` for [`stored`](Self::stored).
    pub(super) async fn store(&mut self) -> Answer<()> {
        match self {
            Self::Redis(_) => self.run("SET kept seven").await,
            Self::ZooKeeper(session) => {
                let forever = CreateMode::Persistent.with_acls(Acls::anyone_all());
                Ok(session.create("/kept", b"seven", &forever).await.map(drop)?)
            }
            Self::Azurite(url) => {
                request(url, "PUT /devstoreaccount1/kept?restype=container").await?;
                let put = "PUT /devstoreaccount1/kept/it\nx-ms-blob-type: BlockBlob\n\nseven";
                request(url, put).await.map(drop)
            }
            Self::Postgres(_) | Self::MariaDb(_) => {
                self.run("CREATE TABLE kept (n VARCHAR(9))").await?;
                self.run("INSERT INTO kept VALUES ('seven')").await
            }
        }
    }

    pub(super) async fn stored(&mut self) -> Answer<String> {
        match self {
            Self::Redis(_) => self.query("GET kept").await,
            Self::ZooKeeper(session) => {
                // A member may not have heard of it yet.
                session.sync("/").await?;
                Ok(String::from_utf8(session.get_data("/kept").await?.0)?)
            }
            Self::Azurite(url) => request(url, "GET /devstoreaccount1/kept/it").await,
            Self::Postgres(_) | Self::MariaDb(_) => self.query("SELECT n FROM kept").await,
        }
    }

    /// Has the server say `it`.
    pub(super) async fn echo(&mut self) -> Answer<String> {
        match self {
            Self::Redis(_) => self.query("ECHO it").await,
            Self::ZooKeeper(session) => {
                let root = session.check_stat("/").await?;
                Ok(root.map_or("nothing", |_| "it").to_owned())
            }
            Self::Azurite(url) => {
                let all = request(url, "GET /devstoreaccount1?comp=list").await?;
                Ok(if all.contains("<Containers") { "it".to_owned() } else { all })
            }
            Self::Postgres(_) | Self::MariaDb(_) => self.query("SELECT 'it'").await,
        }
    }

    /// Whether it notices that its server has died.
    pub(super) async fn is_dead(&mut self) -> bool {
        match self {
            // Its client connects again, and what it is asked meanwhile waits for that.
            Self::ZooKeeper(session) => {
                clock::until("loss", async || session.state() == SessionState::Disconnected).await;
                true
            }
            _ => self.stored().await.is_err(),
        }
    }
}

/// The servers of a ZooKeeper's URL.
fn hosts(url: &str) -> &str {
    let (_, hosts) = url.split_once("://").unwrap();
    let hosts = hosts.split(['/', '?']).next().unwrap();
    hosts.rsplit('@').next().unwrap()
}

/// A session that outlasts all that a test does to its servers.
pub(super) async fn connect(connector: Connector, hosts: &str) -> Answer<ZooKeeper> {
    let connector = connector.with_session_timeout(2 * TIMEOUT).with_fail_eagerly();
    // What a server refuses it may not answer at all.
    Ok(tokio::time::timeout(TIMEOUT, connector.connect(hosts)).await??)
}

/// What an Azurite says to a request that succeeds.
async fn request(url: &str, request: &str) -> Answer<String> {
    let answer = azurite::ask(url, request).await?;
    let (head, body) = answer.split_once("\n\n").ok_or("no end of the headers")?;
    if head.starts_with("HTTP/1.1 2") { Ok(body.to_owned()) } else { Err(answer.into()) }
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

pub(super) async fn query(url: &str, query: &'static str) -> String {
    Session::open(url).await.unwrap().query(query).await.unwrap()
}

pub(super) async fn stored(url: &str) -> String {
    Session::open(url).await.unwrap().stored().await.unwrap()
}
