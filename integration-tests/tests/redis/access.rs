//! Users, passwords, and what a user must be allowed.

use std::collections::HashMap;

use polylock::{Error, Fault, Locks};
use polylock_integration_tests::servers::{Private, redis, valkey};
use polylock_testkit::Missing;

use crate::{Spot, command, everything_works, raw, refusal, told};

/// All that the store's user needs besides its keys and channels.
const NEEDED: &[&str] = &[
    "info",
    "subscribe",
    "evalsha",
    "script|load",
    "time",
    "get",
    "set",
    "del",
    "exists",
    "hget",
    "hset",
    "hdel",
    "hgetall",
    "zadd",
    "zrem",
    "zrange",
    "zrank",
    "zscore",
    "pttl",
    "pexpire",
    "publish",
];

/// What only some of it needs.
const USEFUL: &[&str] = &[
    // To list locks.
    "scan",
    // After a connection was given up.
    "zremrangebyscore",
    // To warn of settings, and to refuse others.
    "config|get",
];

/// A password with everything that means something in a URL.
const PASSWORD: &str = "p@s:s/w#o?r%d&=+ ~ü\"'";

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

type Start = fn(&[&str]) -> Result<Private, Missing>;

/// Each has words of its own for what it forbids.
const MAKES: [Start; 2] = [redis::start, valkey::start];

/// A server with a user `app` who may do what is listed, and the URL of its store.
async fn with_user(start: Start, allowed: impl Iterator<Item = &&'static str>) -> (Private, Spot, String) {
    let server = start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let mut user = command("ACL SETUSER app reset on");
    user.arg(format!(">{PASSWORD}")).arg(format!("~{}", spot.key("*")));
    // Not those of other prefixes, whose users could send it grants that were never made.
    user.arg(format!("&polylock:{}:*", spot.prefix)).arg(format!("&polylock:broken:{}", spot.prefix));
    for name in allowed {
        user.arg(format!("+{name}"));
    }
    spot.ask::<()>(&user).await;
    let url = spot.url.replace("://", &format!("://app:{}@", encoded(PASSWORD)));
    (server, spot, url)
}

fn text(value: &::redis::Value) -> String {
    ::redis::from_redis_value_ref(value).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_do_what_the_store_needs_and_no_more() {
    for start in MAKES {
        let (_server, spot, url) = with_user(start, NEEDED.iter().chain(USEFUL)).await;
        everything_works(&url).await.unwrap();
        let log: Vec<HashMap<String, ::redis::Value>> = spot.ask(&command("ACL LOG")).await;
        let refused: Vec<String> = log.iter().map(|entry| text(&entry["object"])).collect();
        // The driver tells its name to servers that can be told, and goes on if that is refused.
        assert!(refused.iter().all(|command| command == "client|setinfo"), "{refused:?}");

        let first = url.replace('?', "/1?");
        let (fault, told) = refusal(&first).await;
        assert!(fault == Some(Fault::Denied), "{fault:?}: {told}");
        spot.ask::<()>(&command("ACL SETUSER app +select")).await;
        everything_works(&first).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_it_is_needed_and_missing_it_is_told() {
    for start in MAKES {
        let (_server, spot, url) = with_user(start, NEEDED.iter().chain(USEFUL)).await;
        for missing in NEEDED.iter().filter(|name| **name != "info") {
            spot.ask::<()>(command("ACL SETUSER app").arg(format!("-{missing}"))).await;
            spot.ask::<()>(&command("SCRIPT FLUSH")).await;
            let (fault, text) = told(&everything_works(&url).await.expect_err(missing));
            let denied = fault == Some(Fault::Denied) && text.contains("this user may not use");
            assert!(denied && !text.contains(PASSWORD), "without {missing}: {fault:?}: {text}");
            spot.ask::<()>(command("ACL SETUSER app").arg(format!("+{missing}"))).await;
            spot.ask::<()>(&command("CLIENT KILL TYPE pubsub")).await;
            for name in ["all", "shared"] {
                spot.ask::<()>(command("DEL").arg(spot.key(&format!("h:{name}")))).await;
                spot.ask::<()>(command("DEL").arg(spot.key(&format!("q:{name}")))).await;
                spot.ask::<()>(command("DEL").arg(spot.key(&format!("w:{name}")))).await;
                spot.ask::<()>(command("DEL").arg(spot.key(&format!("b:{name}")))).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_channels_of_others_are_not_needed_and_own_ones_are() {
    for start in MAKES {
        let (_server, spot, url) = with_user(start, NEEDED.iter().chain(USEFUL)).await;
        for (what, rule) in [("keys", "resetkeys"), ("channels", "resetchannels")] {
            spot.ask::<()>(command("ACL SETUSER app").arg(rule)).await;
            let (fault, text) = told(&everything_works(&url).await.expect_err(what));
            assert!(fault == Some(Fault::Denied), "without {what}: {fault:?}: {text}");
            spot.ask::<()>(&command("ACL SETUSER app ~* &*")).await;
        }
        everything_works(&url).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_let_in_is_told_what_to_check_and_no_secret() {
    let server = redis::start(&[]).unwrap();
    let mut admin = raw(server.url()).await;
    let rules = ["default off", "app on >right +@all ~* &*", "boss on nopass +@all ~* &*"];
    for rule in rules.into_iter().rev() {
        command(&format!("ACL SETUSER {rule}")).exec_async(&mut admin).await.unwrap();
    }
    let with = |user: &str| server.url().replace("://", &format!("://{user}"));
    everything_works(&with("app:right@")).await.unwrap();
    everything_works(&with("boss:any@")).await.unwrap_or_else(|error| panic!("{error:?}"));
    for user in ["app:canary@", "nobody:canary@", ":canary@", "app:can%61ry%40@", "app:@", ""] {
        let error = Locks::connect(&with(user)).await.unwrap_err();
        let (fault, text) = told(&error);
        println!("{user}: {text}");
        assert!(fault == Some(Fault::Denied), "{user}: {fault:?}: {text}");
        assert!(text.contains("check the user and the password"), "{user}: {text}");
        let shown = format!("{error:?} {text}");
        assert!(!shown.contains("canary") && !shown.contains("can%61ry"), "{shown}");
    }
    assert_eq!(refusal(&with("app:can#ary@")).await.0, None, "a # must be encoded");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_password_for_all() {
    let server = redis::start_as(":s%2Fe%23c", &["requirepass s/e#c"]).unwrap();
    everything_works(server.url()).await.unwrap();
    let (fault, text) = refusal(&server.url().replace(":s%2Fe%23c@", "")).await;
    assert!(fault == Some(Fault::Denied) && text.contains("check the user and the password"), "{text}");
}

/// One that is locked out while it works.
#[tokio::test(flavor = "multi_thread")]
async fn who_loses_its_password_meanwhile_is_told() {
    for start in MAKES {
        let (_server, spot, url) = with_user(start, ["@all"].iter()).await;
        let locks = Locks::connect(&url).await.unwrap();
        locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        spot.ask::<()>(&command("ACL SETUSER app resetpass >other")).await;
        spot.ask::<()>(&command("CLIENT KILL TYPE pubsub")).await;
        let error = locks.lock("a").acquire().await.unwrap_err();
        assert!(matches!(&error, Error::Unavailable(error) if error.fault == Fault::Denied), "{error:?}");
        assert!(!format!("{error:?}").contains(PASSWORD));
    }
}
