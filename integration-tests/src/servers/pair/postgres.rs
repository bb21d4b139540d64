//! A PostgreSQL primary and its synchronous standby. A commit that waits for the disk waits for the standby's disk, too.

use std::{path::Path, time::Duration};

use polylock_testkit::Missing;
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

use super::roles::{Roles, done};
use crate::{
    clock::{self, TIMEOUT},
    servers::{execute, keeper, postgres as server, private::PrivateServer},
};

/// Without the statements that fail while the standby is read-only, which are many.
const SHORT_LOG: &str = "log_min_messages=fatal";

/// The time for a shutdown: then the standby has everything.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Postgres;

pub(super) fn start(settings: &[&str]) -> Result<[PrivateServer; 2], Missing> {
    let settings = [&[SHORT_LOG], settings].concat();
    let [primary, standby] = [server::start(&settings)?, server::start(&settings)?];
    Postgres.follow(&standby, &primary);
    Ok([primary, standby])
}

impl Roles for Postgres {
    fn resign<'p>(
        &self,
        primary: &'p PrivateServer,
        standby: &'p PrivateServer,
        kills: bool,
    ) -> &'p PrivateServer {
        if !kills {
            // A fast shutdown, which ends when the standby has everything, even what was not to wait for it.
            let id = primary.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
            let id = id.unwrap_or_else(|| panic!("the primary does not run"));
            kill_process(id, Signal::INT).unwrap_or_else(|error| panic!("can't stop the primary: {error}"));
            // At last it waits for processes that have not received the first bytes of a connection, for a minute if these were lost.
            clock::within(PATIENCE, || !keeper::is_running(primary.id()));
        }
        primary.kill();
        standby
    }

    fn promote(&self, standby: &PrivateServer) {
        done("can't promote the standby", run(standby, "SELECT pg_promote(true, 30)"));
    }

    fn follow(&self, former: &PrivateServer, primary: &PrivateServer) {
        {
            let mut keeper = former.keeper();
            keeper.kill();
            server::free_memory(&mut keeper);
            keeper.run_as_user(["rm", "-rf", "data"]);
            let program = Path::new(&former.command[0]).with_file_name("pg_basebackup").display().to_string();
            let source = format!("host=127.0.0.1 port={} user=postgres", primary.port());
            let options = ["-D", "data", "-R", "-X", "stream", "-c", "fast", "-d", &source];
            keeper.run_as_user([program.as_str()].into_iter().chain(options));
            keeper.start(&former.command);
            former.wait_for_restart(&keeper);
        }
        done("can't make the standby synchronous", async {
            // Without a standby, commits would wait. The copy of the configuration in the standby is of the time before, so a primary that is
            // promoted waits for none.
            wait_for(primary, "state", "streaming").await?;
            run(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'").await?;
            run(primary, "SELECT pg_reload_conf()").await?;
            wait_for(primary, "sync_state", "sync").await?;
            // The process that executes it tells all sessions that they have to wait for the standby.
            run(primary, "CHECKPOINT").await
        });
    }
}

/// Waits until the standby has this state.
async fn wait_for(primary: &PrivateServer, column: &str, state: &str) -> sqlx::Result<()> {
    let mut connection = PgConnection::connect(primary.url()).await?;
    let limit = clock::now() + TIMEOUT;
    loop {
        let sql = format!("SELECT coalesce(max({column}), '') FROM pg_stat_replication");
        let row = connection.fetch_one(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
        if row.try_get::<String, _>(0)? == state {
            return connection.close().await;
        }
        if clock::now() > limit {
            return Err(sqlx::Error::Protocol(format!("the standby is not {state} within {TIMEOUT:?}")));
        }
        clock::pause(Duration::from_millis(5)).await;
    }
}

async fn run(server: &PrivateServer, sql: &str) -> sqlx::Result<()> {
    execute(server.url(), sql).await
}
