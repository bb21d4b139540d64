//! Connection settings of other drivers and programs: URL keys, clients, credentials that change.

use std::{pin::Pin, time::Duration};

use ::redis::{
    Client, RedisResult, TlsCertificates,
    auth::{BasicAuth, StreamingCredentialsProvider},
};
use futures_util::{Stream, stream};
use polylock::{Error, Locks};
use polylock_integration_tests::{clock, servers::redis};
use polylock_redis::single::{self, Config};
use tokio::sync::watch;

use super::{Namespace, command, use_all_operations};

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_other_drivers_are_applied() {
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let query =
        "db=5&client_name=billing&protocol=3&socket_timeout=2&decode_responses=true&max_connections=10";
    let locks = Locks::connect(&format!("{}?{query}", server.url())).await.unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    let clients: String = namespace.query(&command("CLIENT LIST")).await;
    assert!(clients.contains(" name=billing "), "{clients}");
    let same = Locks::connect(&format!("{}/5", server.url())).await.unwrap();
    assert!(same.lock("a").try_acquire().await.unwrap().is_none(), "the same database");
    guard.release().await.unwrap();
    for (query, key) in [("protocol=2", "protocol"), ("ssl_cert_reqs=none", "ssl_cert_reqs"), ("db=1", "db")]
    {
        let Err(Error::Config(error)) = Locks::connect(&format!("{}/5?{query}", server.url())).await else {
            panic!("{query} is accepted");
        };
        assert_eq!(error.key, key);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_the_application_provides_user_and_authority() {
    let server = redis::start_tls(&[]).unwrap();
    let authority = std::fs::read(server.directory().join("ca.crt")).unwrap();
    let certificates = TlsCertificates { client_tls: None, root_cert: Some(authority) };
    let client = Client::build_with_tls(server.url(), certificates).unwrap();
    let mut raw = client.get_multiplexed_async_connection().await.unwrap();
    let user = command("ACL SETUSER app on >secret ~* &* +@all");
    user.exec_async(&mut raw).await.unwrap();
    let info = client.get_connection_info().clone();
    let settings = info.redis_settings().clone().set_username("app").set_password("secret").set_db(3);
    let client = Client::open(info.set_redis_settings(settings)).unwrap();
    let locks = Locks::new(single::connect(Config::of(&client).namespace("of-client")).await.unwrap());
    let guard = locks.lock("a").acquire().await.unwrap();
    let clients: String = command("CLIENT LIST").query_async(&mut raw).await.unwrap();
    assert!(clients.lines().any(|line| line.contains("user=app") && line.contains(" db=3 ")), "{clients}");
    guard.release().await.unwrap();
}

/// Yields the current password, and each later one.
struct Vault(watch::Receiver<String>);

impl StreamingCredentialsProvider for Vault {
    fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send>> {
        let mut passwords = self.0.clone();
        passwords.mark_changed();
        Box::pin(stream::unfold(passwords, async |mut passwords| {
            passwords.changed().await.ok()?;
            let password = passwords.borrow_and_update().clone();
            Some((Ok(BasicAuth::new("app".to_owned(), password)), passwords))
        }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_can_change_while_locks_are_held() {
    const TTL: Duration = Duration::from_secs(6);
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    namespace.query::<()>(&command("ACL SETUSER app on >first ~* &* +@all")).await;
    let (vault, passwords) = watch::channel("first".to_owned());
    let config = Config::new(&namespace.url).unwrap().credentials(Vault(passwords));
    assert!(!format!("{config:?}").contains("first"));
    let locks = Locks::new(single::connect(config).await.unwrap());
    let guard = locks.lock("a").ttl(TTL).acquire().await.unwrap();
    let users = async || -> String { namespace.query(&command("CLIENT LIST")).await };
    assert!(users().await.contains("user=app"));

    // The old password becomes invalid. The user is logged out when its connections are closed.
    namespace.query::<()>(&command("ACL SETUSER app >second <first")).await;
    vault.send("second".to_owned()).unwrap();
    clock::until("it logs in again", async || {
        let calls = namespace.command_calls().await;
        calls.get("auth").is_some_and(|calls| *calls > 0)
    })
    .await;
    namespace.query::<()>(&command("CLIENT KILL USER app")).await;
    assert!(guard.renewed().await.is_some(), "it is renewed on a connection with the new password");
    guard.release().await.unwrap();
    use_all_operations(&namespace.url).await.unwrap();
}
