//! Redis and Valkey.

use std::fs;

use ::redis::{Client, TlsCertificates};
use polylock_integration_tests::servers::{PrivateServer, redis, redlock, valkey};

use super::session::{Session, query, stored};

#[tokio::test]
async fn a_redis_without_persistence_restarts_empty() {
    for start in [redis::start, valkey::start] {
        let server = start(&[]).unwrap();
        Session::open(server.url()).await.unwrap().store().await.unwrap();
        server.restart();
        let mut session = Session::open(server.url()).await.unwrap();
        assert_eq!(session.query("EXISTS kept").await.unwrap(), "0");
    }
}

#[tokio::test]
async fn a_redis_can_require_a_login() {
    let users = ["user default off", "user app on >s3cret ~* &* +@all"];
    for (user, settings) in [("app:s3cret", &users[..]), (":s3cret", &["requirepass s3cret"])] {
        let server = redis::start_as(user, settings).unwrap();
        server.restart();
        assert_eq!(Session::open(server.url()).await.unwrap().echo().await.unwrap(), "it");
        let wrong = server.url().replace("s3cret", "wrong");
        assert!(Session::open(&wrong).await.is_err(), "{user}");
    }
}

#[tokio::test]
async fn a_redis_with_tls_accepts_only_tls() {
    let (server, other) = (redis::start_tls(&[]).unwrap(), redis::start_tls(&[]).unwrap());
    assert!(server.url().starts_with("rediss://"), "{}", server.url());
    let query = async |url: &str, authority: &PrivateServer| {
        let authority = fs::read(authority.directory().join("ca.crt"))?;
        let client =
            Client::build_with_tls(url, TlsCertificates { client_tls: None, root_cert: Some(authority) })?;
        Session::Redis(client.get_multiplexed_async_connection().await?).query("CONFIG GET port").await
    };
    assert_eq!(query(server.url(), &server).await.unwrap(), "0");
    let by_name = server.url().replace("127.0.0.1", "localhost");
    assert_eq!(query(&by_name, &server).await.unwrap(), "0");
    let refused = query(server.url(), &other).await.expect_err("another authority");
    assert!(format!("{refused:?}").contains("ertificate"), "{refused:?}");
    let plain = server.url().replace("rediss:", "redis:");
    assert!(Session::open(&plain).await.is_err(), "without TLS");
    server.restart();
    assert_eq!(query(server.url(), &server).await.unwrap(), "0");
}

#[tokio::test]
async fn nodes_are_independent() {
    let nodes = redlock::start(3, redis::DURABLE).unwrap();
    Session::open(nodes[0].url()).await.unwrap().store().await.unwrap();
    nodes[1].freeze();
    nodes[2].kill();
    assert_eq!(stored(nodes[0].url()).await, "seven");
    nodes[1].thaw();
    nodes[2].restart();
    for node in &nodes[1..] {
        assert_eq!(query(node.url(), "EXISTS kept").await, "0");
    }
    let url = redlock::url(nodes.iter().map(|node| node.url()));
    let hosts = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect::<Vec<_>>().join(",");
    assert_eq!(url, format!("redlock://{hosts}"));
}
