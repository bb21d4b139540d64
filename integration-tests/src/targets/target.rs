//! Namespaces as targets of the conformance suite.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{Result, Store, memory, url::StoreUrl};
use polylock_redis::{cluster, redlock, sentinel, single};
use polylock_sql::{mysql, postgres, sqlite};
use polylock_testkit::{OwnServer, Target};
use sqlx::{
    AssertSqlSafe, ColumnIndex, Connection, Database, Decode, Executor, MySql, Postgres, Row, Sqlite, Type,
    sqlite::SqliteConnectOptions,
};

use super::{
    blobs, keys,
    log::Log,
    namespace::{Entries, Namespace},
    objects::Objects,
    own_server, znodes,
};

/// As long as the longest leases of the suite, so that a guard gets the requested lease.
const LONG_SESSION: Duration = Duration::from_secs(120);

#[async_trait]
impl Target for Namespace {
    async fn connect(&self) -> Result<Store> {
        let url = StoreUrl::parse(&self.url)?;
        let mut keys = url.keys();
        match url.scheme() {
            "sqlite" => sqlite::connect(sqlite::Config::from_url(&url, &mut keys)?).await,
            "postgres" => postgres::connect(postgres::Config::from_url(&url, &mut keys)?).await,
            "mysql" => mysql::connect(mysql::Config::from_url(&url, &mut keys)?).await,
            "redis" | "valkey" => single::connect(single::Config::from_url(&url, &mut keys)?).await,
            "redis-cluster" => cluster::connect(cluster::Config::from_url(&url, &mut keys)?).await,
            "redis+sentinel" => sentinel::connect(sentinel::Config::from_url(&url, &mut keys)?).await,
            "redlock" => redlock::connect(redlock::Config::from_url(&url, &mut keys)?).await,
            "zookeeper" => {
                let config = polylock_zookeeper::Config::from_url(&url, &mut keys)?;
                polylock_zookeeper::connect(config.session_timeout(LONG_SESSION)).await
            }
            "az" => polylock_azure::connect(polylock_azure::Config::from_url(&url, &mut keys)?).await,
            "both" | "polylock+http" => polylock::read_url(&url)?.1.open().await,
            _ => Ok(memory::named(url.rest())),
        }
    }

    async fn empty(&self) -> Result<bool> {
        let outcome = match &self.entries {
            Entries::Uncounted | Entries::Rows(_) => {
                let Some(sql) = &self.delete_sql else { return Ok(false) };
                // The statements delete the rows, and then return one row.
                let zero = if self.url.starts_with("postgres") { "0::bigint" } else { "0" };
                let deleted = self.rows(&format!("{sql} SELECT {zero}")).await;
                deleted.map(|_| ()).map_err(|error| error.to_string())
            }
            Entries::Keys(prefix, server) => {
                keys::delete(std::slice::from_ref(server), prefix).await.map_err(|error| error.to_string())
            }
            Entries::RedlockKeys(prefix, nodes) | Entries::ClusterKeys(prefix, nodes) => {
                keys::delete(nodes, prefix).await.map_err(|error| error.to_string())
            }
            Entries::Znodes(root, servers) => {
                znodes::delete(servers, root).await.map_err(|error| error.to_string())
            }
            Entries::Blobs(prefix, server) => {
                blobs::delete(server, prefix).await.map_err(|error| error.to_string())
            }
        };
        outcome.unwrap_or_else(|error| panic!("can't empty the store: {error}"));
        Ok(true)
    }

    async fn on_own_server(&self) -> Result<Option<Arc<dyn OwnServer>>> {
        own_server::like(&self.url)
    }

    async fn leftovers(&self) -> Result<Option<u64>> {
        let entries = match &self.entries {
            Entries::Uncounted | Entries::Blobs(..) => return Ok(None),
            Entries::Rows(sql) => self.rows(sql).await.map_err(|error| error.to_string()),
            Entries::Keys(prefix, server) => {
                keys::in_server(server, prefix).await.map_err(|error| error.to_string())
            }
            Entries::RedlockKeys(prefix, nodes) => {
                keys::in_nodes(nodes, prefix).await.map_err(|error| error.to_string())
            }
            Entries::ClusterKeys(prefix, nodes) => {
                keys::in_cluster(nodes, prefix).await.map_err(|error| error.to_string())
            }
            Entries::Znodes(root, servers) => {
                znodes::below(servers, root).await.map_err(|error| error.to_string())
            }
        };
        Ok(Some(entries.unwrap_or_else(|error| panic!("can't count the entries: {error}"))))
    }

    async fn leftovers_text(&self) -> Option<String> {
        let (sql, (server, _)) = (self.entries_text_sql.as_deref()?, self.url.split_once('?')?);
        let text = if server.starts_with("postgres") {
            first_value::<Postgres, String>(server.parse().ok()?, sql).await
        } else {
            first_value::<MySql, String>(server.parse().ok()?, sql).await
        };
        Some(text.unwrap_or_else(|error| error.to_string()))
    }

    async fn errors_logged(&self) -> Vec<String> {
        self.log.as_ref().map_or_else(Vec::new, Log::errors)
    }
}

impl Namespace {
    /// Counts objects in the store of this namespace; `None` if the test can't read them.
    ///
    /// # Panics
    /// If the server does not reply.
    pub async fn count(&self, objects: Objects<'_>) -> Option<u64> {
        let counted = match &self.entries {
            Entries::Uncounted => return None,
            Entries::Rows(_) => {
                self.rows(&objects.catalog_query(&self.url)).await.map_err(|error| error.to_string())
            }
            Entries::Keys(_, server) => {
                keys::count(std::slice::from_ref(server), objects).await.map_err(|error| error.to_string())
            }
            Entries::RedlockKeys(_, nodes) | Entries::ClusterKeys(_, nodes) => {
                keys::count(nodes, objects).await.map_err(|error| error.to_string())
            }
            Entries::Znodes(_, servers) => {
                znodes::count(servers, objects).await.map_err(|error| error.to_string())
            }
            Entries::Blobs(_, server) => {
                blobs::count(server, objects).await.map_err(|error| error.to_string())
            }
        };
        Some(counted.unwrap_or_else(|error| panic!("can't count the objects: {error}")))
    }

    /// Counts everything that is in the store: the rows of the tables of this namespace, all keys or nodes of the server, or the blobs of this
    /// namespace; `None` if the test can't read them.
    ///
    /// # Panics
    /// If the server does not reply.
    pub async fn entries(&self) -> Option<u64> {
        let counted = match &self.entries {
            Entries::Uncounted | Entries::ClusterKeys(..) => return None,
            Entries::Rows(_) => {
                let tables =
                    self.delete_sql.as_deref()?.split(';').filter_map(|it| it.strip_prefix("DELETE FROM "));
                let counts: Vec<String> =
                    tables.map(|table| format!("(SELECT count(*) FROM {table})")).collect();
                self.rows(&format!("SELECT {}", counts.join(" + "))).await.map_err(|error| error.to_string())
            }
            Entries::Keys(_, server) => keys::all(server).await.map_err(|error| error.to_string()),
            Entries::RedlockKeys(_, nodes) => keys::all(&nodes[0]).await.map_err(|error| error.to_string()),
            Entries::Znodes(_, servers) => Ok(znodes::all(servers).await),
            Entries::Blobs(prefix, server) => {
                let all = Objects { begin: prefix, except: "\0" };
                blobs::count(server, all).await.map_err(|error| error.to_string())
            }
        };
        Some(counted.unwrap_or_else(|error| panic!("can't count the entries: {error}")))
    }

    /// Returns the number of rows that this query counts in its database.
    async fn rows(&self, sql: &str) -> sqlx::Result<u64> {
        let (server, _) = self.url.split_once('?').unwrap_or((&self.url, ""));
        let rows = match server.split_once(':') {
            Some(("postgres", _)) => first_value::<Postgres, i64>(server.parse()?, sql).await?,
            Some(("mysql", _)) => first_value::<MySql, i64>(server.parse()?, sql).await?,
            _ => {
                let options = SqliteConnectOptions::new().filename(self.file("locks.db"));
                first_value::<Sqlite, i64>(options, sql).await?
            }
        };
        Ok(rows.unsigned_abs())
    }
}

/// Returns the first value of the reply to `sql`, without the store.
async fn first_value<DB: Database, T>(
    options: <DB::Connection as Connection>::Options,
    sql: &str,
) -> sqlx::Result<T>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    usize: ColumnIndex<DB::Row>,
    for<'r> T: Decode<'r, DB> + Type<DB>,
{
    let mut connection = <DB::Connection as Connection>::connect_with(&options).await?;
    let rows = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).fetch_one(&mut connection).await?.try_get(0)?;
    connection.close().await?;
    Ok(rows)
}
