//! What is MariaDB's and MySQL's own.

mod faults;
mod planted;
mod settings;

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    clock::{self, pause},
    servers::Server,
};
use polylock_sql::mysql::{Config, schema};
use polylock_testkit::history::{self, Rules};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, Row};

use crate::load::Outcome;

/// Tables of their own on `server`: the URL with `more` keys, and the prefix.
fn tables(server: &Server, more: &str) -> (String, String) {
    let joint = if server.url().contains('?') { '&' } else { '?' };
    let table = server.name();
    (format!("{}{joint}polylock.table={table}{more}", server.url()), table)
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

fn clean(outcome: &Outcome) {
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    println!("{} sections, {} failures, {} losses", outcome.sections.len(), outcome.failures, outcome.losses);
}

/// What `change` makes of a routine, such as `claim`, put in its place under the tables of `url`.
async fn plant(server: &Server, url: &str, table: &str, routine: &str, change: impl Fn(&str) -> String) {
    // The tables first.
    drop(Locks::connect(url).await.unwrap());
    let script = schema(&Config::new(server.url()).unwrap().table(table)).unwrap();
    let sound = script.split("//\n").find(|part| part.contains(&format!("_{routine}_2("))).unwrap();
    let planted = change(sound);
    assert_ne!(planted, sound, "nothing was planted");
    let (_, body) = planted.rsplit_once("IF NOT EXISTS */ ").unwrap();
    let (name, _) = body.split_once('(').unwrap();
    let mut connection = connection(server).await;
    run(&mut connection, &format!("DROP PROCEDURE {name}")).await;
    run(&mut connection, &format!("CREATE PROCEDURE {body}")).await;
}

/// All gates, kept by somebody else until it commits.
async fn keep_gates(server: &Server, table: &str) -> MySqlConnection {
    let mut keeper = connection(server).await;
    run(&mut keeper, &format!("START TRANSACTION; SELECT * FROM {table}_gates FOR UPDATE")).await;
    keeper
}

/// Waits until the number that `sql` asks for is as `wanted`, and returns it.
async fn until(connection: &mut MySqlConnection, sql: &str, wanted: impl Fn(i64) -> bool) -> i64 {
    let end = clock::now() + clock::PATIENCE;
    loop {
        let found = number(connection, sql).await;
        if wanted(found) {
            return found;
        }
        assert!(clock::now() < end, "{sql}: {found}");
        // What the server shows of its transactions stays the same as long as somebody looks more often than every 100 ms.
        pause(Duration::from_millis(150)).await;
    }
}

/// Waits until a transaction waits for a lock.
async fn waiting(server: &Server) {
    let sql = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
    until(&mut connection(server).await, sql, |found| found == 1).await;
}

/// The connection of one of those who are busy with the tables, or 0.
fn busy(table: &str) -> String {
    format!(
        "SELECT coalesce(max(id), 0) FROM information_schema.processlist \
         WHERE id <> connection_id() AND command = 'Query' AND info LIKE '%{table}%'"
    )
}
