//! Rows in the tables as a step of the server's clock, a program that died, or another program leaves them.

use std::time::Duration;

use polylock::Locks;
use polylock_core::{
    BreakNotice, BreakOrder, ClaimOutcome, KeepAlive, LockName, Mode, OwnerId, Request, Store, io,
};
use polylock_integration_tests::{clock::until, stores, targets::Namespace};
use polylock_testkit::Target;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection, SqliteConnection};

/// Runs `sql` on the tables of `namespace`, which it calls `{p}`: the number of rows that changed.
async fn run(namespace: &Namespace, sql: &str) -> u64 {
    let (server, query) = namespace.url().split_once('?').unwrap();
    let prefix =
        query.split('&').find_map(|pair| pair.strip_prefix("polylock.namespace=")).unwrap_or("polylock");
    let sql = AssertSqlSafe(sql.replace("{p}", prefix));
    let scheme = server.split(':').next().unwrap();
    match scheme {
        "postgres" => {
            PgConnection::connect(server).await.unwrap().execute(sql).await.unwrap().rows_affected()
        }
        "mysql" => {
            MySqlConnection::connect(server).await.unwrap().execute(sql).await.unwrap().rows_affected()
        }
        _ => SqliteConnection::connect(server).await.unwrap().execute(sql).await.unwrap().rows_affected(),
    }
}

/// Longer than any lease of this test.
const HOUR: i64 = 3_600_000_000;

/// Carries out an operation where the store runs.
pub(crate) async fn run_on_io_thread<T, F>(store: &Store, operation: F) -> T
where
    T: Send + 'static,
    F: Future<Output = polylock::Result<T>> + Send + 'static,
{
    io::run(store.backend.capabilities().backend, operation).await.unwrap().unwrap()
}

pub(crate) async fn claim(store: &Store, request: &Request) -> ClaimOutcome {
    let (backend, request) = (store.backend.clone(), request.clone());
    run_on_io_thread(store, async move { backend.claim(&request).await }).await
}

/// The server's clock goes beyond all leases, and back later: seen from the tables, all rows become older, and then younger.
async fn a_grant_removes_the_expired_entries_that_it_replaces(store: &str) {
    let namespace = stores::namespace(store).await;
    let store = namespace.connect().await.unwrap();
    let request = |mode| Request::new(LockName::new("n").unwrap(), mode, Duration::from_secs(60));
    let (reader, waiter, writer) =
        (request(Mode::Shared), request(Mode::Exclusive), request(Mode::Exclusive));
    assert!(matches!(claim(&store, &reader).await, ClaimOutcome::Granted(_)));
    assert!(matches!(claim(&store, &waiter).await, ClaimOutcome::Queued(_)));
    for table in ["holds", "waiters"] {
        run(&namespace, &format!("UPDATE {{p}}_{table} SET expires_at = expires_at - {HOUR}")).await;
    }
    assert!(matches!(claim(&store, &writer).await, ClaimOutcome::Granted(_)), "all others have expired");
    run(&namespace, &format!("UPDATE {{p}}_holds SET expires_at = expires_at + {HOUR} WHERE slot <> ''"))
        .await;
    run(&namespace, &format!("UPDATE {{p}}_waiters SET expires_at = expires_at + {HOUR}")).await;
    let (inspect, name) = (store.inspect.clone().unwrap(), writer.name.clone());
    let status = run_on_io_thread(&store, async move { inspect.inspect(&name).await }).await;
    assert_eq!((status.holders.len(), status.waiters.len()), (1, 0), "back again: {status:?}");
    let backend = store.backend.clone();
    let renewal = run_on_io_thread(&store, async move { backend.keep_alive(&[reader.into()]).await }).await;
    assert!(matches!(renewal.as_slice(), [KeepAlive::Lost(_)]), "{renewal:?}");
}

/// The break notice of a holder that never reads it remains until the lease would have ended.
async fn an_unread_break_notice_is_swept(store: &str) {
    let namespace = stores::namespace(store).await;
    let opened = namespace.connect().await.unwrap();
    let request = Request::new(LockName::new("n").unwrap(), Mode::Exclusive, Duration::from_secs(3));
    let ClaimOutcome::Granted(grant) = claim(&opened, &request).await else { panic!("it is free") };
    let (inspect, name) = (opened.inspect.clone().unwrap(), request.name.clone());
    let notice = BreakNotice::new(OwnerId::process(), None);
    let order = BreakOrder::new(notice, [Some(grant.token)]).force();
    let broken = run_on_io_thread(&opened, async move { inspect.break_lock(&name, &order).await }).await;
    assert_eq!(broken.len(), 1);
    // Changes nothing, and counts the rows.
    let notices = async || run(&namespace, "UPDATE {p}_broken SET notice = notice || ''").await;
    assert_eq!(notices().await, 1, "it is kept");
    until("it is swept by those who open the store", async || {
        drop(namespace.connect().await.unwrap());
        notices().await == 0
    })
    .await;
}

/// Returns the statements that insert holds with invalid values, each of a separate lock.
fn invalid_rows(store: &str) -> Vec<String> {
    let bytes = |text: &[u8]| {
        let hex: String = text.iter().map(|byte| format!("{byte:02x}")).collect();
        if store == "postgres" { format!("'\\x{hex}'::bytea") } else { format!("x'{hex}'") }
    };
    let text = |text: &[u8]| match store {
        "postgres" => format!("convert_from({}, 'UTF8')", bytes(String::from_utf8_lossy(text).as_bytes())),
        "mariadb" => bytes(text),
        _ => format!("CAST({} AS TEXT)", bytes(text)),
    };
    let long = vec![b'x'; if store == "mariadb" { 255 } else { 100_000 }];
    // Name, mode, since, owner, label, notice.
    type Row<'a> = (&'a [u8], &'a str, &'a str, &'a [u8], &'a [u8], &'a [u8]);
    let rows: [Row<'_>; 8] = [
        (b"owner", "1", "0", b"two\nlines \xff\xfe \x1b[31m", b"", b""),
        (b"label", "1", "0", b"", &long, b"by\nwhom\n\x07"),
        (b"since", "1", "-9223372036854775807", b"o", b"", b""),
        (b"later", "1", "9223372036854775807", b"o", b"", b""),
        (b"mode", "77", "0", b"o", b"", b""),
        (b"nul\0name", "1", "0", b"o", b"", b""),
        (b"\xff\xfe", "1", "0", b"o", b"", b""),
        (b"", "1", "0", b"o", b"", b""),
    ];
    let mut inserts = Vec::new();
    for (index, (name, mode, since, owner, label, notice)) in rows.iter().enumerate() {
        let conflicts = ["", ", conflicts", ", 0"].map(|part| if store == "postgres" { part } else { "" });
        let (name, owner, label) = (bytes(name), text(owner), text(label));
        let notice = if notice.is_empty() { "NULL".to_owned() } else { text(notice) };
        inserts.push(format!(
            "INSERT INTO {{p}}_holds (token, name, slot, request, mode, owner, label, since, expires_at, notice{}) \
             VALUES ({}, {name}, {}, {}, {mode}, {owner}, {label}, {since}, 9223372036854775807, {notice}{})",
            conflicts[1], index + 1000, bytes(b""), bytes(&[7; 16]), conflicts[2],
        ));
    }
    inserts
}

async fn an_invalid_row_hides_no_other_row(store: &str) {
    let namespace = stores::namespace(store).await;
    let locks = Locks::connect(namespace.url()).await.unwrap();
    let guard = locks.lock("plain").acquire().await.unwrap();
    for insert in invalid_rows(store) {
        assert_eq!(run(&namespace, &insert).await, 1, "{insert}");
    }
    let all = locks.list("").await.unwrap();
    let names: Vec<&str> = all.iter().map(|lock| lock.name.as_str()).collect();
    assert_eq!(names, ["label", "later", "owner", "plain", "since"]);
    for lock in &all {
        for entry in &lock.holders {
            let notice = entry.broken.as_ref().map(ToString::to_string).unwrap_or_default();
            let shown = format!("{}{}{notice}", entry.owner, entry.label);
            assert!(shown.len() < 1200 && !shown.contains(char::is_control), "{shown:?}");
        }
    }
    for name in ["owner", "label", "since", "later"] {
        assert_eq!(locks.inspect(name).await.unwrap().holders.len(), 1, "{name}");
    }
    // A break names the holds that are shown.
    for error in
        [locks.inspect("mode").await.unwrap_err(), locks.break_lock("mode").force().await.unwrap_err()]
    {
        let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
        let chain: Vec<String> = causes.map(ToString::to_string).collect();
        let chain = chain.join(": ");
        assert!(chain.contains("\"mode\"") && chain.contains("delete that row"), "{chain}");
    }
    assert_eq!(locks.break_lock("since").await.unwrap().len(), 1);
    guard.release().await.unwrap();
}

macro_rules! on_every_database {
    ($($module:ident $store:literal)*) => {
        $(mod $module {
            on_every_database! { @ $store
                a_grant_removes_the_expired_entries_that_it_replaces
                an_unread_break_notice_is_swept
                an_invalid_row_hides_no_other_row
            }
        })*
    };
    (@ $store:literal $($test:ident)*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $test() {
            super::$test($store).await;
        })*
    };
}

on_every_database! { postgres "postgres" mariadb "mariadb" sqlite "sqlite_full" }
