//! What the servers of the SQL stores, and of ZooKeeper, have used.

use std::{fs, time::Duration};

use polylock_integration_tests::servers::{PrivateServer, zookeeper as server};
use sqlx::{ConnectOptions, Connection, Row, mysql::MySqlConnectOptions, postgres::PgConnectOptions};

/// What a server has done so far.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) cpu: Duration,
    /// Calls of the store's routines; transactions in PostgreSQL, where each of them is one.
    pub(crate) calls: u64,
    /// Statements that clients have sent.
    pub(crate) statements: u64,
}

/// The packets that a ZooKeeper server has received, pings included.
pub(crate) async fn zookeeper(server: &PrivateServer) -> Done {
    let packets = server::packets(server).await;
    Done { cpu: cpu(server.id().unwrap()), calls: packets, statements: packets }
}

pub(crate) async fn postgres(server: &PrivateServer) -> Done {
    let mut connection = server.url().parse::<PgConnectOptions>().unwrap().connect().await.unwrap();
    let sql = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()";
    let calls: i64 = sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    let calls = calls.unsigned_abs();
    Done { cpu: cpu(server.id().unwrap()), calls, statements: calls }
}

pub(crate) async fn mariadb(server: &PrivateServer) -> Done {
    let mut connection = server.url().parse::<MySqlConnectOptions>().unwrap().connect().await.unwrap();
    let sql = "SHOW GLOBAL STATUS WHERE variable_name IN ('Com_call_procedure', 'Questions')";
    let rows = sqlx::raw_sql(sql).fetch_all(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    let value = |name: &str| {
        let row = rows.iter().find(|row| row.get::<String, _>(0) == name).unwrap();
        row.get::<String, _>(1).parse().unwrap()
    };
    Done {
        cpu: cpu(server.id().unwrap()),
        calls: value("Com_call_procedure"),
        statements: value("Questions"),
    }
}

/// CPU time of a process, of its children, and of those that have ended.
pub(crate) fn cpu(process: u32) -> Duration {
    let mut ticks = of(process).map_or(0, |(_, own, ended)| own + ended);
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(child) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        ticks += of(child).filter(|(parent, ..)| *parent == process).map_or(0, |(_, own, ended)| own + ended);
    }
    Duration::from_millis(10 * ticks)
}

/// The parent of a process, its ticks of CPU time, and those of its children that have ended.
fn of(process: u32) -> Option<(u32, u64, u64)> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
    Some((fields[1].parse().ok()?, ticks(11) + ticks(12), ticks(13) + ticks(14)))
}
