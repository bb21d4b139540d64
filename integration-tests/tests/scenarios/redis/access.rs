//! Users, passwords, and the required rights of a user.

use std::{collections::HashMap, time::Duration};

use polylock::{Error, Fault, Locks};
use polylock_integration_tests::servers::{PrivateServer, redis, valkey};
use polylock_testkit::Missing;

use super::{Namespace, command, connect, describe, refusal, use_all_operations};

/// The rights that the store's user requires besides its keys and channels.
const NEEDED: &[&str] = &[
    "info",
    "subscribe",
    "evalsha",
    "script|load",
    "time",
    "get",
    "set",
    "exists",
    "hget",
    "hset",
    "hdel",
    "hgetall",
    // For the record of a job.
    "hmget",
    "zadd",
    "zrem",
    "zrange",
    "zrank",
    "zscore",
    "pttl",
    "pexpire",
    "publish",
];

/// The rights that only some operations require.
const USEFUL: &[&str] = &[
    // To list locks.
    "scan",
    // For programs of earlier versions, and for `redlock://`.
    "del",
    // After a connection was discarded.
    "zremrangebyscore",
    // To warn of unsafe settings, and to refuse some.
    "config|get",
];

/// A password with all characters that have a meaning in a URL.
const PASSWORD: &str = "p@s:s/w#o?r%d&=+ ~ü\"'";

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

type Start = fn(&[&str]) -> Result<PrivateServer, Missing>;

/// Each server has its own messages for forbidden commands.
const STARTS: [Start; 2] = [redis::start, valkey::start];

/// Starts a server with a user `app` that has the rights `allowed`. Returns also the URL of the store.
async fn with_user(
    start: Start,
    allowed: impl Iterator<Item = &&'static str>,
) -> (PrivateServer, Namespace, String) {
    let server = start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let mut user = command("ACL SETUSER app reset on");
    user.arg(format!(">{PASSWORD}")).arg(format!("~{}", namespace.key("*")));
    // The channels of other prefixes are excluded: their users could send it forged grants.
    user.arg(format!("&polylock:{}:*", namespace.prefix))
        .arg(format!("&polylock:broken:{}", namespace.prefix));
    for name in allowed {
        user.arg(format!("+{name}"));
    }
    namespace.query::<()>(&user).await;
    let url = namespace.url.replace("://", &format!("://app:{}@", encoded(PASSWORD)));
    (server, namespace, url)
}

fn text(value: &::redis::Value) -> String {
    ::redis::from_redis_value_ref(value).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rights_are_sufficient() {
    for start in STARTS {
        let (_server, namespace, url) = with_user(start, NEEDED.iter().chain(USEFUL)).await;
        use_all_operations(&url).await.unwrap();
        let log: Vec<HashMap<String, ::redis::Value>> = namespace.query(&command("ACL LOG")).await;
        let refused: Vec<String> = log.iter().map(|entry| text(&entry["object"])).collect();
        // The driver sends its name, and ignores a refusal.
        assert!(refused.iter().all(|command| command == "client|setinfo"), "{refused:?}");

        let first = url.replace('?', "/1?");
        let (fault, text) = refusal(&first).await;
        assert!(fault == Some(Fault::Denied), "{fault:?}: {text}");
        namespace.query::<()>(&command("ACL SETUSER app +select")).await;
        use_all_operations(&first).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_documented_right_is_required_and_named_if_missing() {
    for start in STARTS {
        let (_server, namespace, url) = with_user(start, NEEDED.iter().chain(USEFUL)).await;
        for missing in NEEDED.iter().filter(|name| **name != "info") {
            namespace.query::<()>(command("ACL SETUSER app").arg(format!("-{missing}"))).await;
            namespace.query::<()>(&command("SCRIPT FLUSH")).await;
            let (fault, text) = describe(&use_all_operations(&url).await.expect_err(missing));
            let denied = fault == Some(Fault::Denied) && text.contains("this user may not use");
            assert!(denied && !text.contains(PASSWORD), "without {missing}: {fault:?}: {text}");
            namespace.query::<()>(command("ACL SETUSER app").arg(format!("+{missing}"))).await;
            namespace.query::<()>(&command("CLIENT KILL TYPE pubsub")).await;
            for name in ["all", "shared"] {
                namespace.query::<()>(command("DEL").arg(namespace.key(&format!("h:{name}")))).await;
                namespace.query::<()>(command("DEL").arg(namespace.key(&format!("q:{name}")))).await;
                namespace.query::<()>(command("DEL").arg(namespace.key(&format!("w:{name}")))).await;
                namespace.query::<()>(command("DEL").arg(namespace.key(&format!("b:{name}")))).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_keys_and_channels_of_the_prefix_are_required() {
    for start in STARTS {
        let (_server, namespace, url) = with_user(start, NEEDED.iter().chain(USEFUL)).await;
        for (what, rule) in [("keys", "resetkeys"), ("channels", "resetchannels")] {
            namespace.query::<()>(command("ACL SETUSER app").arg(rule)).await;
            let (fault, text) = describe(&use_all_operations(&url).await.expect_err(what));
            assert!(fault == Some(Fault::Denied), "without {what}: {fault:?}: {text}");
            namespace.query::<()>(&command("ACL SETUSER app ~* &*")).await;
        }
        use_all_operations(&url).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_failure_names_the_remedy_and_no_secret() {
    let server = redis::start(&[]).unwrap();
    let mut admin = connect(server.url()).await;
    let rules = ["default off", "app on >right +@all ~* &*", "boss on nopass +@all ~* &*"];
    for rule in rules.into_iter().rev() {
        command(&format!("ACL SETUSER {rule}")).exec_async(&mut admin).await.unwrap();
    }
    let with = |user: &str| server.url().replace("://", &format!("://{user}"));
    use_all_operations(&with("app:right@")).await.unwrap();
    use_all_operations(&with("boss:any@")).await.unwrap_or_else(|error| panic!("{error:?}"));
    for user in ["app:canary@", "nobody:canary@", ":canary@", "app:can%61ry%40@", "app:@", ""] {
        let error = Locks::connect(&with(user)).await.unwrap_err();
        let (fault, text) = describe(&error);
        println!("{user}: {text}");
        assert!(fault == Some(Fault::Denied), "{user}: {fault:?}: {text}");
        assert!(text.contains("check the user and the password"), "{user}: {text}");
        let shown = format!("{error:?} {text}");
        assert!(!shown.contains("canary") && !shown.contains("can%61ry"), "{shown}");
    }
    assert_eq!(refusal(&with("app:can#ary@")).await.0, None, "a # must be encoded");
}

/// The operator has removed it with `rename-command`. The text of the server contains the first lines of a script.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_the_server_does_not_allow_is_named() {
    for removed in ["EVALSHA", "SCRIPT", "TIME", "SUBSCRIBE", "HELLO"] {
        let server = redis::start(&[&format!("rename-command {removed} \"\"")]).unwrap();
        let (fault, text) = describe(&use_all_operations(server.url()).await.expect_err(removed));
        let named = text.contains(&format!("polylock needs {removed}, which this server does not allow"));
        assert!(fault == Some(Fault::Permanent) && named && !text.contains("Grants"), "{removed}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_wide_password_is_accepted() {
    let server = redis::start_as(":s%2Fe%23c", &["requirepass s/e#c"]).unwrap();
    use_all_operations(server.url()).await.unwrap();
    let (fault, text) = refusal(&server.url().replace(":s%2Fe%23c@", "")).await;
    assert!(fault == Some(Fault::Denied) && text.contains("check the user and the password"), "{text}");
}

/// The password is changed while the store is open.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_change_is_an_outage_and_then_reported_as_denied() {
    for start in STARTS {
        let (_server, namespace, url) = with_user(start, ["@all"].iter()).await;
        let locks = Locks::connect(&url).await.unwrap();
        locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        namespace.query::<()>(&command("ACL SETUSER app resetpass >other")).await;
        namespace.query::<()>(&command("CLIENT KILL TYPE pubsub")).await;
        let error = locks.lock("a").outage(Duration::from_secs(1)).acquire().await.unwrap_err();
        assert!(matches!(&error, Error::Unavailable(error) if error.fault == Fault::Revoked), "{error:?}");
        assert!(!format!("{error:?}").contains(PASSWORD));
        let acquisition = tokio::spawn(locks.lock("a").acquire());
        namespace.query::<()>(command("ACL SETUSER app").arg(format!(">{PASSWORD}"))).await;
        acquisition.await.unwrap().unwrap().release().await.unwrap();
    }
}
