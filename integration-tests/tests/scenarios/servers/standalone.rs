//! A standalone ZooKeeper.

use std::{fs, time::Duration};

use polylock_integration_tests::{
    clock,
    servers::{PrivateServer, zookeeper},
};
use zookeeper_client::{Acls, Client, CreateMode, Error, SaslOptions, TlsOptions};

use super::session::{Answer, connect};

fn host(server: &PrivateServer) -> String {
    format!("127.0.0.1:{}", server.port())
}

#[tokio::test]
async fn settings_reach_the_server_and_options_reach_java() {
    // Otherwise it looks for empty containers once a minute.
    let settings = ["maxSessionTimeout=9000", "-Dznode.container.checkIntervalMs=50"];
    let server = zookeeper::start(&settings).unwrap();
    let client = connect(Client::connector(), &host(&server)).await.unwrap();
    assert_eq!(client.session_timeout(), Duration::from_secs(9));

    let create =
        async |path, mode: CreateMode| client.create(path, b"", &mode.with_acls(Acls::anyone_all())).await;
    create("/box", CreateMode::Container).await.unwrap();
    create("/box/thing", CreateMode::Persistent).await.unwrap();
    client.delete("/box/thing", None).await.unwrap();
    clock::until("the empty container is deleted", async || client.check_stat("/box").await == Ok(None))
        .await;
}

#[tokio::test]
async fn a_session_expires_after_its_timeout() {
    let server = zookeeper::start(&[]).unwrap();
    let short = Duration::from_millis(400);
    let dying = Client::connector().with_session_timeout(short).with_detached();
    let dying = dying.connect(&host(&server)).await.unwrap();
    assert_eq!(dying.session_timeout(), short);
    dying.create("/lease", b"", &CreateMode::Ephemeral.with_acls(Acls::anyone_all())).await.unwrap();
    let left = clock::now();
    drop(dying);
    let other = connect(Client::connector(), &host(&server)).await.unwrap();
    clock::until("the session has expired", async || other.check_stat("/lease").await == Ok(None)).await;
    let lasted = clock::now().since(left);
    assert!(lasted > short / 2 && lasted < Duration::from_secs(10), "{lasted:?}");
}

/// Trusts the authority of `server`, and shows a certificate of its if `known`.
fn trusting(server: &PrivateServer, known: bool) -> TlsOptions {
    let file = |name| fs::read_to_string(server.directory().join(name)).unwrap();
    let options = TlsOptions::new().with_pem_ca(&file("ca.crt")).unwrap();
    if known { options.with_pem_identity(&file("server.crt"), &file("server.key")).unwrap() } else { options }
}

/// Has the server say something in a session of its own.
async fn greet(server: &PrivateServer, options: TlsOptions) -> Answer<()> {
    let cluster = format!("tcp+tls://{}", host(server));
    let client = connect(Client::connector().with_tls(options), &cluster).await?;
    Ok(client.check_stat("/").await.map(drop)?)
}

#[tokio::test]
async fn a_server_with_tls_accepts_only_tls() {
    let (server, other) = (zookeeper::start_tls(&[]).unwrap(), zookeeper::start_tls(&[]).unwrap());
    greet(&server, trusting(&server, false)).await.unwrap();
    greet(&server, trusting(&other, false)).await.expect_err("another authority");
    connect(Client::connector(), &host(&server)).await.map(drop).expect_err("without TLS");
    server.restart();
    greet(&server, trusting(&server, false)).await.unwrap();
}

#[tokio::test]
async fn a_server_with_tls_can_require_a_certificate() {
    let server = zookeeper::start_tls(&["ssl.clientAuth=need"]).unwrap();
    greet(&server, trusting(&server, true)).await.unwrap();
    greet(&server, trusting(&server, false)).await.expect_err("without credentials");
}

#[tokio::test]
async fn a_server_with_sasl_accepts_only_its_user() {
    let server = zookeeper::start_sasl(&[]).unwrap();
    let greet = async |password: Option<&str>| -> Answer<()> {
        let connector = match password {
            Some(password) => {
                let credentials = SaslOptions::digest_md5(zookeeper::USER, password.to_owned());
                Client::connector().with_sasl(credentials)
            }
            None => Client::connector(),
        };
        let client = connect(connector, &host(&server)).await?;
        Ok(client.check_stat("/").await.map(drop)?)
    };
    for _ in 0..2 {
        greet(Some(zookeeper::PASSWORD)).await.unwrap();
        let refused = greet(Some("wrong")).await.expect_err("a wrong password");
        assert_eq!(refused.downcast_ref(), Some(&Error::AuthFailed), "{refused}");
        greet(None).await.expect_err("without credentials");
        server.restart();
    }
}
