//! Options of a program's own, and credentials that change while the store is open.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use polylock::Locks;
use polylock_integration_tests::servers::{mariadb, postgres};
use polylock_sql::{mysql, postgres as pg};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};

/// Acquires and releases a lock.
async fn assert_usable(locks: &Locks) {
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_requests_credentials_before_each_connection() {
    let server = postgres::start(&[]).unwrap();
    let mut admin = PgConnection::connect(server.url()).await.unwrap();
    admin.execute("CREATE ROLE app LOGIN; GRANT ALL ON SCHEMA public TO app").await.unwrap();
    let rules = server.directory().join("data/pg_hba.conf");
    let open = std::fs::read_to_string(&rules).unwrap();
    std::fs::write(&rules, format!("host all app all scram-sha-256\n{open}")).unwrap();
    admin.execute("SELECT pg_reload_conf()").await.unwrap();
    let options: sqlx::postgres::PgConnectOptions = server.url().parse().unwrap();
    let (password, calls) = (Arc::new(Mutex::new(String::new())), Arc::new(AtomicUsize::new(0)));
    let config = pg::Config::from_options(options.username("app")).unwrap().credentials({
        let (password, calls) = (password.clone(), calls.clone());
        move |options| {
            calls.fetch_add(1, Ordering::Relaxed);
            let password = password.lock().unwrap().clone();
            async move {
                if password.is_empty() {
                    Err("the vault is closed".into())
                } else {
                    Ok(options.password(&password))
                }
            }
        }
    });
    let refused = pg::connect(config.clone()).await.unwrap_err();
    assert!(refused.is_temporary(), "{refused:?}");
    let mut locks = None;
    for next in ["canary-1", "canary-2"] {
        admin.execute(AssertSqlSafe(format!("ALTER ROLE app PASSWORD '{next}'"))).await.unwrap();
        next.clone_into(&mut password.lock().unwrap());
        // Waits until each session has ended.
        admin
            .execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'app'")
            .await
            .unwrap();
        if locks.is_none() {
            locks = Some(Locks::new(pg::connect(config.clone()).await.unwrap()));
        }
        assert_usable(locks.as_ref().unwrap()).await;
    }
    assert!(calls.load(Ordering::Relaxed) >= 3);
    assert!(!format!("{config:?}").contains("canary"));
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_requests_credentials_before_each_connection() {
    let server = mariadb::start(&[]).unwrap();
    let mut admin = MySqlConnection::connect(server.url()).await.unwrap();
    admin.execute("CREATE USER app IDENTIFIED BY 'one'").await.unwrap();
    admin.execute("GRANT ALL ON polylock.* TO app").await.unwrap();
    let options: sqlx::mysql::MySqlConnectOptions = server.url().parse().unwrap();
    let config = mysql::Config::from_options(options.username("app")).unwrap();
    assert!(mysql::connect(config.clone()).await.is_err(), "there is no password yet");
    let config = config.credentials(|options| async move { Ok(options.password("one")) });
    assert_usable(&Locks::new(mysql::connect(config).await.unwrap())).await;
}

/// As migration tools do: one statement at a time, without a client that knows `DELIMITER`.
#[tokio::test(flavor = "multi_thread")]
async fn the_schema_of_mysql_can_be_sent_statement_by_statement() {
    let server = mariadb::start(&[]).unwrap();
    let mut admin = MySqlConnection::connect(server.url()).await.unwrap();
    for strategy in ["lease", "pessimistic"] {
        let url = format!("{}?polylock.namespace={strategy}&polylock.strategy={strategy}", server.url());
        for statement in mysql::schema_statements(&mysql::Config::new(&url).unwrap()).unwrap() {
            assert!(!statement.contains("DELIMITER") && !statement.contains('{'), "{statement}");
            admin.execute(sqlx::raw_sql(AssertSqlSafe(statement))).await.unwrap();
        }
    }
    admin.execute("CREATE USER weak IDENTIFIED BY 'w'").await.unwrap();
    admin.execute("GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON polylock.* TO weak").await.unwrap();
    for strategy in ["lease", "pessimistic"] {
        let url = server.url().replace("root@", "weak:w@");
        let url = format!("{url}?polylock.namespace={strategy}&polylock.strategy={strategy}");
        assert_usable(&Locks::connect(&url).await.unwrap()).await;
    }
}
