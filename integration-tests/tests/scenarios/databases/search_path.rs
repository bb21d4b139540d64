//! Other users of a PostgreSQL database may create functions and operators in a schema of the search path. None of them ever runs
//! with the rights of a program that locks.

use polylock::Locks;
use polylock_integration_tests::{
    clock::{TIMEOUT, until},
    servers::{PrivateServer, postgres},
};
use polylock_sql::postgres::Config;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

/// Creates a function that records its caller and then calls the original.
const TRAPS: &[&str] = &[
    // A better match than the original's (text, bigint) for a call with a literal number.
    "public.hashtextextended(a text, b integer) RETURNS bigint => pg_catalog.hashtextextended(a, b::bigint)",
    // A better match than the original's (regclass) for a call with a literal name. All tokens are the same.
    "public.nextval(a text) RETURNS bigint => 7",
    // The same signature: it is called where the search path names its schema before pg_catalog.
    "public.hashtextextended(a text, b bigint) RETURNS bigint => pg_catalog.hashtextextended(a, b)",
    "public.nextval(a regclass) RETURNS bigint => 7",
    "public.clock_timestamp() RETURNS timestamptz => pg_catalog.clock_timestamp()",
    "public.encode(a bytea, b text) RETURNS text => pg_catalog.encode(a, b)",
    "public.set_config(a text, b text, c boolean) RETURNS text => pg_catalog.set_config(a, b, c)",
    "public.current_setting(a text) RETURNS text => pg_catalog.current_setting(a)",
    "public.to_regclass(a text) RETURNS regclass => pg_catalog.to_regclass(a)",
    "public.pg_is_in_recovery() RETURNS boolean => pg_catalog.pg_is_in_recovery()",
    "public.pg_backend_pid() RETURNS integer => pg_catalog.pg_backend_pid()",
    "public.now() RETURNS timestamptz => pg_catalog.now()",
    "public.times(a numeric, b integer) RETURNS numeric => pg_catalog.numeric_mul(a, b::numeric)",
    "public.less(a bigint, b bigint) RETURNS boolean => pg_catalog.int8lt(a, b)",
    "public.at_least(a bigint, b integer) RETURNS boolean => pg_catalog.int84ge(a, b)",
    "public.more(a bigint, b bigint) RETURNS boolean => pg_catalog.int8gt(a, b)",
    "public.equal(a bytea, b bytea) RETURNS boolean => pg_catalog.byteaeq(a, b)",
    "public.equal(a bytea, b text) RETURNS boolean => pg_catalog.byteaeq(a, b::bytea)",
];

const OPERATORS: &str = "
    CREATE OPERATOR public.* (LEFTARG = numeric, RIGHTARG = integer, FUNCTION = public.times);
    CREATE OPERATOR public.< (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = public.less);
    CREATE OPERATOR public.>= (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = public.at_least);
    CREATE OPERATOR public.> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = public.more);
    CREATE OPERATOR public.= (LEFTARG = bytea, RIGHTARG = bytea, FUNCTION = public.equal);
    CREATE OPERATOR public.= (LEFTARG = bytea, RIGHTARG = text, FUNCTION = public.equal);";

fn trap(signature: &str, result: &str) -> String {
    format!(
        "CREATE FUNCTION {signature} LANGUAGE plpgsql SET search_path = pg_catalog AS $trap$ BEGIN \
         INSERT INTO public.loot SELECT current_user, $name${signature}$name$; RETURN {result}; END $trap$;"
    )
}

/// Overloads of the functions of polylock that match calls with literal numbers or texts better than the originals.
const OVERLOADS: &str = "SELECT format('%I.%I(%s)', n.nspname, p.proname, replace(replace(
        pg_get_function_identity_arguments(p.oid), ' bigint', ' integer'), ' bytea', ' text'))
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE p.proname LIKE 'polylock\\_%' AND pg_get_function_identity_arguments(p.oid) LIKE '%b%'";

async fn run(connection: &mut PgConnection, sql: &str) {
    connection
        .execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned())))
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

async fn texts(connection: &mut PgConnection, sql: &str) -> Vec<String> {
    let rows = connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// A server where every user may create objects in the schema `public`, the default before version 15, with traps in it.
async fn start_with_traps(search_path: &str) -> PrivateServer {
    let server = postgres::start(&[]).unwrap();
    let mut admin = PgConnection::connect(server.url()).await.unwrap();
    run(&mut admin, "GRANT CREATE ON SCHEMA public TO PUBLIC; CREATE ROLE evil LOGIN; CREATE ROLE app LOGIN")
        .await;
    run(&mut admin, &format!("ALTER ROLE app SET search_path = {search_path}")).await;
    let url = server.url().replace("postgres@", "app@");
    for strategy in ["lease", "pessimistic"] {
        let table = format!("polylock_{strategy}");
        drop(
            Locks::connect(&format!("{url}?polylock.namespace={table}&polylock.strategy={strategy}"))
                .await
                .unwrap(),
        );
    }
    let mut evil = PgConnection::connect(&server.url().replace("postgres@", "evil@")).await.unwrap();
    run(&mut evil, "CREATE TABLE public.loot (who text, what text); GRANT INSERT ON public.loot TO PUBLIC")
        .await;
    for text in TRAPS {
        let (signature, result) = text.split_once(" => ").unwrap();
        run(&mut evil, &trap(signature, result)).await;
    }
    run(&mut evil, OPERATORS).await;
    for signature in texts(&mut evil, OVERLOADS).await {
        run(&mut evil, &trap(&format!("{signature} RETURNS bigint"), "7")).await;
    }
    server
}

/// All that a program can do with a lock. The tokens of two holds, one after the other.
async fn use_locks(url: &str) -> [u64; 2] {
    let (here, there) = (Locks::connect(url).await.unwrap(), Locks::connect(url).await.unwrap());
    let guard = here.lock("n").acquire().await.unwrap();
    let first = guard.fencing_token().get();
    assert!(there.lock("n").try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(there.lock("n").acquire());
    if !url.contains("strategy=pessimistic") {
        until("it waits", async || here.inspect("n").await.unwrap().waiters.len() == 1).await;
    }
    assert_eq!(here.list("").await.unwrap().len(), 1);
    assert_eq!(here.break_lock("n").await.unwrap().len(), 1);
    assert!(here.break_lock("free").force().await.unwrap().is_empty());
    assert!(guard.renewed().await.is_some() || !guard.is_held());
    guard.release().await.ok();
    let next = waiting.await.unwrap().unwrap();
    let second = next.fencing_token().get();
    next.release().await.unwrap();
    assert!(here.close(TIMEOUT).await && there.close(TIMEOUT).await);
    [first, second]
}

async fn no_foreign_object_is_run(search_path: &str) {
    let server = start_with_traps(search_path).await;
    let mut admin = PgConnection::connect(server.url()).await.unwrap();
    for strategy in ["lease", "pessimistic"] {
        let url = format!(
            "{}?polylock.namespace=polylock_{strategy}&polylock.strategy={strategy}&polylock.ttl=6s",
            server.url().replace("postgres@", "app@")
        );
        let [first, second] = use_locks(&url).await;
        let loot = texts(&mut admin, "SELECT DISTINCT who || ' ran ' || what FROM public.loot").await;
        assert!(second > first, "{strategy}: token {second} after {first}; {loot:#?}");
        assert_eq!(loot, [""; 0], "{strategy}");
    }
}

/// Also if a function is called under another user's search path.
#[tokio::test(flavor = "multi_thread")]
async fn every_function_pins_its_own_search_path() {
    let server = start_with_traps("\"$user\", public").await;
    let mut app = PgConnection::connect(&server.url().replace("postgres@", "app@")).await.unwrap();
    let (name, request) = ("'\\x61'::bytea", "'\\x00112233445566778899aabbccddeeff'::bytea");
    let far = i64::MAX;
    for call in [
        format!(
            "claim_4({name}, {request}, 32::bigint, 62::bigint, ''::bytea, 'o'::text, ''::text, 60000000::bigint, \
             0::bigint, 'c'::text, 0::bigint, true, true, {far}::bigint)"
        ),
        // The length of the name, the name, the request, exclusive, a minute, five seconds.
        "keep_alive_3('\\x016100112233445566778899aabbccddeeff01000000000393870000000000004c4b40'::bytea, true)"
            .to_owned(),
        format!(
            "convert_3({name}, {request}, 0::bigint, 8::bigint, 52::bigint, 0::bigint, 62::bigint, 0::bigint, true, \
             {far}::bigint)"
        ),
        format!("park_4({name}, {request}, 1::bigint, 60000000::bigint, true, 0::bigint, {far}::bigint)"),
        format!("break_3({name}, '1,2'::text, 'n'::text, true, 'c'::text, {far}::bigint)"),
        format!("release_4({name}, {request}, 'c'::text, 1000000::bigint, {far}::bigint)"),
    ] {
        run(&mut app, &format!("SELECT * FROM public.polylock_lease_{call}")).await;
    }
    let mut admin = PgConnection::connect(server.url()).await.unwrap();
    let loot = texts(&mut admin, "SELECT DISTINCT who || ' ran ' || what FROM public.loot").await;
    assert_eq!(loot, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_others_in_a_schema_of_the_search_path_are_never_run() {
    no_foreign_object_is_run("\"$user\", public").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_others_in_a_schema_before_the_system_schema_are_never_run() {
    no_foreign_object_is_run("public, pg_catalog").await;
}

/// The fence for tables of the program, created and used among the traps.
async fn a_fence_runs_no_foreign_object(search_path: &str) {
    let server = start_with_traps(search_path).await;
    let url = server.url().replace("postgres@", "app@");
    let mut app = PgConnection::connect(&url).await.unwrap();
    run(&mut app, "CREATE TABLE public.orders (id bigint PRIMARY KEY, fencing_token bigint); INSERT INTO public.orders VALUES (42)").await;
    let script = Config::new(&url).unwrap().fence_script().unwrap();
    run(&mut app, &script.create()).await;
    let table = script.for_table("orders", None).unwrap();
    for _ in 0..2 {
        run(&mut app, &table.create()).await;
    }
    for (token, passes) in [(7, true), (7, true), (6, false), (8, true)] {
        for write in [
            format!("SELECT public.polylock_fence('orders/42'::text, {token}::bigint)"),
            format!("UPDATE public.orders SET fencing_token = {token}::bigint"),
        ] {
            let result = app.execute(sqlx::raw_sql(AssertSqlSafe(write.clone()))).await;
            assert_eq!(result.is_ok(), passes, "{write}: {result:?}");
        }
    }
    let mut admin = PgConnection::connect(server.url()).await.unwrap();
    let loot = texts(&mut admin, "SELECT DISTINCT who || ' ran ' || what FROM public.loot").await;
    assert_eq!(loot, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_runs_no_object_of_others() {
    for search_path in ["\"$user\", public", "public, pg_catalog"] {
        a_fence_runs_no_foreign_object(search_path).await;
    }
}
