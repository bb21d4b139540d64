//! The store in a simulated process, for tests in virtual time. This module is unstable: it is no part of the interface that versions
//! promise.
//!
//! SQLite is the real one, on a real file. Its driver has threads of its own, so a statement runs while the thread of the simulation waits for
//! it: in one step, which takes no virtual time. The simulation decides when a statement begins, and when its outcome is known, as a disk does.
//! A statement is a connection to [`DISK`]:
//! 1. the process writes the statement;
//! 2. it reads the clock, in microseconds since 1970, as eight bytes: the statement runs now;
//! 3. it writes what the statement has returned;
//! 4. it reads one byte.

use polylock_core::{Result, Store, simulation};
use sqlx::{AssertSqlSafe, Error, SqlSafeStr, SqlStr, sqlite::SqliteArguments};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    config::Config,
    connection::{self, Connections, Reply, Slot},
    datagrams::Datagrams,
    dialect::SqliteDialect,
    process_lock::ProcessLock,
    statements::{self, Statements},
    tables::prepare,
};
use crate::{NextVersion, engine::LeaseBackend};

/// The address of the disk.
pub const DISK: &str = connection::DISK;

/// The clock, in place of [`NOW`](statements::NOW): a setting of the connection that SQLite can read in a trigger. The setting itself concerns
/// the size of the journal after a commit.
const NOW: &str = "((SELECT journal_size_limit FROM pragma_journal_size_limit) / 1000 * 1000)";

/// The end of a simulated process: other processes find that it has ended.
pub type End = Box<dyn FnOnce() -> std::io::Result<()> + Send>;

/// Opens the store on the file of `config`, in a directory that exists. Statements have the edits of [`Config::next_version`].
///
/// # Errors
/// [`polylock_core::Error::Unavailable`] if the file can't be used.
///
/// # Cancel safety
/// Yes.
pub async fn connect(mut config: Config) -> Result<(Store, End)> {
    polylock_core::io::run(super::NAME, async move {
        let next =
            config.next.take().map_or_else(|| NextVersion::compatible(""), |next| NextVersion::clone(&next));
        let config = config.next_version(next.edit(statements::NOW, NOW));
        let connections = Connections::new(&config, config.path.clone());
        let statements = Statements::new(&config.table, config.next.as_ref());
        prepare(&connections, &statements).await?;
        let process = ProcessLock::take(&connections.path).await;
        let end = process.end_of_process();
        let end = end.map_err(|failure| super::error::from_system(&connections.path, &failure))?;
        let dialect = SqliteDialect::new(&config, connections, statements, Datagrams::none(), process);
        Ok((LeaseBackend::open(dialect).await, Box::new(end) as End))
    })
    .await?
}

impl Slot {
    /// Runs `sql` when the simulated `disk` lets it.
    pub(super) async fn run_on(
        &mut self,
        disk: simulation::Connecting,
        sql: SqlStr,
        is_query: bool,
        arguments: SqliteArguments,
    ) -> Result<Reply, Error> {
        let mut disk = disk.await?;
        disk.write_all(sql.as_str().as_bytes()).await?;
        let now = disk.read_i64().await?;
        let reply = pollster::block_on(async {
            self.set_clock(now).await?;
            self.execute(sql, is_query, arguments).await
        });
        let shown = match &reply {
            Ok(Reply { rows, changed, .. }) => format!("{} rows, {changed:?}", rows.len()),
            Err(error) => error.to_string(),
        };
        disk.write_all(shown.as_bytes()).await?;
        if let Err(error) = disk.read_u8().await {
            // Like any statement with an unknown outcome.
            if let Some(connection) = self.open.take() {
                pollster::block_on(sqlx::Connection::close(connection))?;
            }
            return Err(error.into());
        }
        reply
    }

    async fn set_clock(&mut self, now_us: i64) -> Result<(), Error> {
        let mut connection = self.take().await?;
        // Nothing waits for a lock, which would take real time, or for the disk: no power cut is simulated.
        let settings = format!(
            "PRAGMA busy_timeout = 0; PRAGMA synchronous = OFF; PRAGMA journal_size_limit = {now_us}"
        );
        sqlx::query(AssertSqlSafe(settings).into_sql_str())
            .persistent(false)
            .execute(&mut connection)
            .await?;
        self.open = Some(connection);
        Ok(())
    }
}
