//! Servers and users with which the store is not opened. Settings are in `src/settings`.

use polylock::{Fault, Locks};
use polylock_integration_tests::{clock, refusals::refusal, servers::postgres};
use sqlx::{AssertSqlSafe, Executor};

use super::{connection, url};

#[tokio::test(flavor = "multi_thread")]
async fn unusable_servers_are_refused_with_a_remedy() {
    let server = postgres::start(&[]).unwrap();
    let url = url(&server, "");
    let mut admin = connection(&server).await;
    drop(Locks::connect(&url).await.unwrap());

    let (_, table) = url.rsplit_once('=').unwrap();
    for (version, words) in [(9, "update the program"), (1, "drop them")] {
        let other = format!("UPDATE {table}_meta SET value = {version}");
        admin.execute(sqlx::raw_sql(AssertSqlSafe(other))).await.unwrap();
        let (fault, text) = refusal(&url).await;
        assert!(fault.is_none() && text.contains(words), "{version}: {text}");
    }

    admin.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'").await.unwrap();
    let (fault, text) = refusal(&url.replace("/postgres?", "/latin?")).await;
    assert!(fault == Some(Fault::Permanent) && text.contains("LATIN1"), "{text}");

    let (fault, text) = refusal(&url.replace("/postgres?", "/nowhere?")).await;
    assert!(fault.is_none() && text.contains("does not exist"), "a wrong setting: {text}");

    admin.execute("CREATE ROLE weak LOGIN").await.unwrap();
    let (fault, text) = refusal(&url.replace("postgres@", "weak@").replace(table, "other")).await;
    assert!(fault == Some(Fault::Denied) && text.contains("CREATE TABLE IF NOT EXISTS"), "{text}");

    std::fs::write(server.directory().join("data/standby.signal"), "").unwrap();
    tokio::task::block_in_place(|| server.restart());
    let (fault, text) = refusal(&url).await;
    assert!(fault == Some(Fault::Temporary) && text.contains("replica"), "{text}");

    server.kill();
    let (fault, text) = refusal(&url).await;
    assert!(fault == Some(Fault::Temporary) && text.contains("can't be reached"), "{text}");
    assert_eq!(text.matches("refused").count(), 1, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_for_a_wrong_password_does_not_contain_it() {
    let server = postgres::start(&[]).unwrap();
    let mut admin = connection(&server).await;
    admin.execute("CREATE ROLE careful LOGIN PASSWORD 'right'").await.unwrap();
    let rules = server.directory().join("data/pg_hba.conf");
    let open = std::fs::read_to_string(&rules).unwrap();
    std::fs::write(&rules, format!("host all careful all scram-sha-256\n{open}")).unwrap();
    admin.execute("SELECT pg_reload_conf()").await.unwrap();
    let with = |password: &str| url(&server, "").replace("postgres@", &format!("careful:{password}@"));
    clock::until("the rules are read", async || {
        Locks::connect(&with("canary")).await.is_err_and(|error| {
            format!("{error:?}").contains("28P01") || format!("{error:?}").contains("password")
        })
    })
    .await;
    let (fault, text) = refusal(&with("canary")).await;
    assert!(fault == Some(Fault::Denied) && text.contains("check the user and the password"), "{text}");
    assert!(text.contains("28P01") && !text.contains("at line"), "{text}");
    let error = Locks::connect(&with("canary")).await.unwrap_err();
    assert!(!format!("{error:?} {text}").contains("canary"));
}
