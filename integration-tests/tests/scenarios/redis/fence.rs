//! The script of a fence for data in Redis.

use polylock_redis::FENCE;
use redis::{RedisError, RedisResult, Value};

use super::Namespace;
use polylock_integration_tests::servers;

/// A fence, and keys beside it.
struct Fenced {
    namespace: Namespace,
    fence: String,
    key: String,
}

impl Fenced {
    async fn create() -> Self {
        let namespace = Namespace::on(servers::redis().unwrap()).await;
        let (fence, key) = (namespace.key("fence"), namespace.key("order"));
        Self { namespace, fence, key }
    }

    /// Runs `command` with the token; `{key}` in it is the key.
    async fn run(&self, token: &str, command: &str) -> RedisResult<Value> {
        let mut call = redis::cmd("EVAL");
        call.arg(FENCE).arg(2).arg(&self.fence).arg(&self.key).arg(token);
        for word in command.split_whitespace() {
            call.arg(word.replace("{key}", &self.key));
        }
        call.query_async(&mut *self.namespace.raw.lock().await).await
    }

    async fn state(&self) -> Option<String> {
        self.namespace.query(redis::cmd("GET").arg(&self.key)).await
    }
}

fn code(result: &RedisResult<Value>) -> Option<&str> {
    result.as_ref().err().and_then(RedisError::code)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_accepts_no_smaller_token() {
    let fenced = Fenced::create().await;
    // The last digits do not fit a Lua number.
    let tokens = [
        ("0", true),
        ("7", true),
        ("7", true),
        ("6", false),
        ("10", true),
        ("9", false),
        ("9007199254740993", true),
        ("9007199254740992", false),
        ("9007199254740993", true),
        ("9223372036854775807", true),
        ("9223372036854775806", false),
        ("10", false),
    ];
    for (token, passes) in tokens {
        let before = fenced.state().await;
        let result = fenced.run(token, &format!("SET {{key}} {token}")).await;
        assert_eq!(result.is_ok(), passes, "{token}: {result:?}");
        assert_eq!(code(&result) == Some("POLYLOCKSTALE"), !passes, "{token}: {result:?}");
        let expected = if passes { Some(token.to_owned()) } else { before };
        assert_eq!(fenced.state().await, expected, "{token}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_runs_any_command_and_returns_its_reply() {
    let fenced = Fenced::create().await;
    assert_eq!(fenced.run("3", "RPUSH {key} a b").await.unwrap(), Value::Int(2));
    let list = fenced.run("3", "LRANGE {key} 0 -1").await.unwrap();
    assert!(matches!(&list, Value::Array(values) if values.len() == 2), "{list:?}");
    // The token of a command that fails is recorded.
    assert_eq!(code(&fenced.run("5", "INCR {key}").await), Some("WRONGTYPE"));
    assert_eq!(code(&fenced.run("4", "DEL {key}").await), Some("POLYLOCKSTALE"));
    assert_eq!(fenced.run("5", "DEL {key}").await.unwrap(), Value::Int(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_refuses_values_that_are_no_token() {
    let fenced = Fenced::create().await;
    for token in ["", "x", "-1", "+1", "01", "1.0", "1e3", "0x1", " 1", "10000000000000000000", "nan"] {
        assert_eq!(code(&fenced.run(token, "SET {key} x").await), Some("POLYLOCKTOKEN"), "{token:?}");
    }
    assert_eq!(code(&fenced.run("1", "").await), Some("POLYLOCKTOKEN"));
    assert_eq!(fenced.state().await, None);
    // The key of the fence is used for other data.
    let _: Value = fenced.namespace.query(redis::cmd("SET").arg(&fenced.fence).arg("paid")).await;
    assert_eq!(code(&fenced.run("1", "SET {key} x").await), Some("POLYLOCKTOKEN"));
    let _: Value = fenced.namespace.query(redis::cmd("DEL").arg(&fenced.fence)).await;
    let _: Value = fenced.namespace.query(redis::cmd("RPUSH").arg(&fenced.fence).arg("1")).await;
    assert_eq!(code(&fenced.run("1", "SET {key} x").await), Some("WRONGTYPE"));
    assert_eq!(fenced.state().await, None);
}
