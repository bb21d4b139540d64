//! A MariaDB primary and its replica. Replication is asynchronous, so the primary ends its role in an orderly way.

use polylock_testkit::Missing;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, Row};

use super::roles::{Roles, done};
use crate::servers::{execute, mariadb as server, private::PrivateServer};

/// The settings of both servers.
const REPLICATED: [&str; 5] =
    ["log-bin=binlog", "log-slave-updates", "binlog-format=ROW", "gtid-strict-mode=ON", "sync-binlog=1"];

#[derive(Debug)]
pub(super) struct MariaDb;

pub(super) fn start(settings: &[&str]) -> Result<[PrivateServer; 2], Missing> {
    let start = |number: &str| server::start(&[&[number], settings, &REPLICATED].concat());
    let [primary, standby] = [start("server-id=1")?, start("server-id=2")?];
    // What each has written at its start is the same, so the standby reads the log from the begin.
    done("can't empty the standby", run(&standby, "RESET MASTER; SET GLOBAL read_only = 1"));
    MariaDb.follow(&standby, &primary);
    let user = "CREATE USER app; GRANT ALL ON polylock.* TO app";
    done("can't create the user", run(&primary, user));
    Ok([primary, standby])
}

impl Roles for MariaDb {
    fn url(&self, primary: &PrivateServer) -> String {
        // The administrator may write to a server that is read-only.
        primary.url().replace("root@", "app@")
    }

    fn resign<'p>(
        &self,
        primary: &'p PrivateServer,
        standby: &'p PrivateServer,
        _: bool,
    ) -> &'p PrivateServer {
        done("can't stop the primary", async {
            // It waits for the commits that have begun.
            run(primary, "SET GLOBAL read_only = 1").await?;
            run(primary, "KILL USER app").await?;
            catch_up(standby, primary).await
        });
        standby
    }

    fn promote(&self, standby: &PrivateServer) {
        let promote = run(standby, "STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = 0");
        done("can't promote the standby", promote);
    }

    fn follow(&self, former: &PrivateServer, primary: &PrivateServer) {
        done("can't make a standby", async {
            let port = primary.port();
            let follow = format!(
                "SET GLOBAL gtid_slave_pos = @@GLOBAL.gtid_current_pos;
                 CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = 'root',
                     MASTER_CONNECT_RETRY = 1, MASTER_USE_GTID = slave_pos;
                 START SLAVE"
            );
            run(former, &follow).await?;
            catch_up(former, primary).await
        });
    }
}

/// Waits until the standby has everything that is in the log of the primary.
async fn catch_up(standby: &PrivateServer, primary: &PrivateServer) -> sqlx::Result<()> {
    let position: String = value(primary, "SELECT @@GLOBAL.gtid_binlog_pos").await?;
    let waited: i64 = value(standby, &format!("SELECT MASTER_GTID_WAIT('{position}', 30)")).await?;
    let late = || sqlx::Error::Protocol(format!("the standby does not reach {position}\n{}", standby.log()));
    if waited == 0 { Ok(()) } else { Err(late()) }
}

async fn value<T>(server: &PrivateServer, sql: &str) -> sqlx::Result<T>
where
    T: for<'r> sqlx::Decode<'r, sqlx::MySql> + sqlx::Type<sqlx::MySql>,
{
    let mut connection = MySqlConnection::connect(server.url()).await?;
    let row = connection.fetch_one(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await?;
    connection.close().await?;
    row.try_get(0)
}

async fn run(server: &PrivateServer, sql: &str) -> sqlx::Result<()> {
    execute(server.url(), sql).await
}
