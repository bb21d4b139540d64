//! Behaviour that only MariaDB and MySQL have.

mod faults;
mod hand_over;
mod planted;
mod settings;

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    clock::{self, pause},
    servers::Server,
};
use polylock_sql::mysql::{Config, schema};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, Row};

/// Tables of their own on `server`: the URL with `more` keys, and the prefix.
fn tables(server: &Server, more: &str) -> (String, String) {
    let separator = if server.url().contains('?') { '&' } else { '?' };
    let table = server.name();
    (format!("{}{separator}polylock.namespace={table}{more}", server.url()), table)
}

async fn connection(server: &Server) -> MySqlConnection {
    MySqlConnection::connect(server.url()).await.unwrap()
}

async fn run(connection: &mut MySqlConnection, sql: &str) {
    connection.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
}

/// The first column of the only row, as a number.
async fn number(connection: &mut MySqlConnection, sql: &str) -> i64 {
    connection
        .fetch_one(sqlx::raw_sql(AssertSqlSafe(sql.to_owned())))
        .await
        .unwrap()
        .try_get_unchecked(0)
        .unwrap()
}

/// A number that the server counts.
async fn counter(connection: &mut MySqlConnection, name: &str) -> i64 {
    let sql = format!(
        "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status WHERE variable_name = '{name}'"
    );
    number(connection, &sql).await
}

/// Replaces a routine, such as `claim`, of the tables of `url` by the output of `change`.
async fn plant(server: &Server, url: &str, table: &str, routine: &str, change: impl Fn(&str) -> String) {
    // The tables first.
    drop(Locks::connect(url).await.unwrap());
    let script = schema(&Config::new(server.url()).unwrap().namespace(table)).unwrap();
    let is_named = |part: &&str| (2..10).any(|version| part.contains(&format!("_{routine}_{version}(")));
    let sound = script.split("//\n").find(is_named).unwrap();
    let planted = change(sound);
    assert_ne!(planted, sound, "nothing was planted");
    let (_, body) = planted.rsplit_once("IF NOT EXISTS */ ").unwrap();
    let (name, _) = body.split_once('(').unwrap();
    let mut connection = connection(server).await;
    run(&mut connection, &format!("DROP PROCEDURE {name}")).await;
    run(&mut connection, &format!("CREATE PROCEDURE {body}")).await;
}

/// Locks all gates until the returned connection commits.
async fn lock_gates(server: &Server, table: &str) -> MySqlConnection {
    let mut keeper = connection(server).await;
    run(&mut keeper, &format!("START TRANSACTION; SELECT * FROM {table}_gates FOR UPDATE")).await;
    keeper
}

/// Waits until `wanted` accepts the number that `sql` returns, and returns it.
async fn wait_until(connection: &mut MySqlConnection, sql: &str, wanted: impl Fn(i64) -> bool) -> i64 {
    let end = clock::now() + clock::TIMEOUT;
    loop {
        let found = number(connection, sql).await;
        if wanted(found) {
            return found;
        }
        assert!(clock::now() < end, "{sql}: {found}");
        // The server's view of its transactions is cached while it is read more often than every 100 ms.
        pause(Duration::from_millis(150)).await;
    }
}

/// Waits until a transaction waits for a lock.
async fn wait_for_blocked_session(server: &Server) {
    let sql = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
    wait_until(&mut connection(server).await, sql, |found| found == 1).await;
}

/// The connection id of a session with a running statement on the tables, or 0.
fn busy(table: &str) -> String {
    format!(
        "SELECT coalesce(max(id), 0) FROM information_schema.processlist \
         WHERE id <> connection_id() AND command = 'Query' AND info LIKE '%{table}%'"
    )
}
