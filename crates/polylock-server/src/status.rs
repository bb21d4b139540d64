//! The status of locks, and breaks, for people and programs in any language.

use std::{future::IntoFuture, sync::Arc};

use axum::{
    Json,
    extract::{Path, Query, State},
};
use http::HeaderMap;
use polylock_core::{LockName, time_limit};
use polylock_protocol::{InvalidBody, values::token_of};
use serde::Deserialize;

use crate::{
    access::Right,
    body::{OptionalBody, Refused},
    caller::Caller,
    expiry::api_limit_of,
    objects::{EntryObject, LockObject},
    service::Inner,
};

/// The names to list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Prefix {
    #[serde(default)]
    pub(crate) prefix: String,
}

/// The body of a break.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BreakOptions {
    slot: Option<u32>,
    reason: Option<String>,
    /// The holds that the caller has seen; without any, those that the lock has now.
    fencing_tokens: Vec<u64>,
    force: bool,
}

pub(crate) async fn list(
    State(service): State<Arc<Inner>>,
    caller: Caller,
    Query(Prefix { prefix }): Query<Prefix>,
) -> Result<Json<Vec<LockObject>>, Refused> {
    let locks = service.locks.list(&prefix).await?;
    let shown = locks.iter().filter(|lock| caller.may(Right::Inspect, lock.name.as_str()));
    Ok(Json(shown.map(Into::into).collect()))
}

pub(crate) async fn inspect(
    State(service): State<Arc<Inner>>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<LockObject>, Refused> {
    caller.ensure(Right::Inspect, &name)?;
    Ok(Json((&service.locks.inspect(&name).await?).into()))
}

/// Breaks a lock, and returns the holders that have the notice, or have lost the lock by force.
pub(crate) async fn break_lock(
    State(service): State<Arc<Inner>>,
    caller: Caller,
    Path(name): Path<String>,
    headers: HeaderMap,
    OptionalBody(options): OptionalBody<BreakOptions>,
) -> Result<Json<Vec<EntryObject>>, Refused> {
    caller.ensure(Right::Break, &name)?;
    let limit = api_limit_of(&service, &headers)?;
    let name = match options.slot {
        None => name,
        Some(slot) => LockName::of_slot(&name, slot)
            .map_err(|error| InvalidBody::new("slot", error.to_string()))?
            .as_str()
            .to_owned(),
    };
    let mut order = service.locks.break_lock(&name);
    if let Some(caller) = caller.owner() {
        order = order.by(&caller);
    }
    if let Some(reason) = options.reason {
        order = order.reason(reason);
    }
    for token in options.fencing_tokens {
        order = order.token(token_of(token)?);
    }
    if options.force {
        order = order.force();
    }
    Ok(Json(time_limit::until(limit, order.into_future()).await?.iter().map(Into::into).collect()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use http::{Method, StatusCode};
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    use crate::serve_tests::{event_of, open, request, restricted, send};

    #[tokio::test]
    async fn names_are_shown_exactly_and_the_lock_that_is_shown_is_broken() {
        let routes = open();
        let mut streams = Vec::new();
        for (path, body) in [
            ("a%0Ab", json!({})),
            ("a%5Cnb", json!({})),
            ("%20", json!({ "also": ["a%0Ac", "a\nc"] })),
            ("gpu", json!({ "slots": 2 })),
        ] {
            let acquire = request(Method::POST, &format!("/v1/locks/{path}"), None, Some(&body));
            let mut stream = send(&routes, acquire).await.into_body().into_data_stream();
            let granted = event_of(&mut stream).await;
            if path == "%20" {
                let names: Vec<_> = granted["ids"].as_object().unwrap().keys().collect();
                assert_eq!(names, [" ", "a\nc", "a%0Ac"], "a client releases each by its name");
            }
            streams.push(stream);
        }
        let list = async || {
            let reply = send(&routes, request(Method::GET, "/v1/locks", None, None)).await;
            let bytes = reply.into_body().collect().await.unwrap().to_bytes();
            serde_json::from_slice::<Vec<Value>>(&bytes).unwrap()
        };
        let mut shown: Vec<_> =
            list().await.iter().map(|lock| (lock["name"].clone(), lock["slot"].clone())).collect();
        shown.sort_by_key(|(name, _)| name.to_string());
        let plain = |name: &str| (json!(name), Value::Null);
        let mut expected = vec![
            plain("a\nb"),
            plain("a\\nb"),
            plain(" "),
            plain("a%0Ac"),
            plain("a\nc"),
            (json!("gpu"), json!(0)),
        ];
        expected.sort_by_key(|(name, _)| name.to_string());
        assert_eq!(shown, expected);
        let breaks = async |path: &str, body: Value| {
            let path = format!("/v1/locks/{path}/break");
            send(&routes, request(Method::POST, &path, None, Some(&body))).await.status()
        };
        assert_eq!(breaks("a%5Cnb", json!({ "force": true })).await, StatusCode::OK);
        assert_eq!(breaks("gpu", json!({ "slot": 0, "force": true })).await, StatusCode::OK);
        let left: Vec<_> = list().await.iter().map(|lock| lock["name"].clone()).collect();
        assert!(
            left.contains(&json!("a\nb")) && !left.contains(&json!("a\\nb")) && !left.contains(&json!("gpu")),
            "{left:?}"
        );
    }

    #[tokio::test]
    async fn a_break_and_a_hold_have_the_name_of_their_caller() {
        let all = r#"allow = [{ prefix = "", rights = ["exclusive", "break"] }]"#;
        let routes = restricted(&[("billing", all), ("operator", all)]);
        let acquire = request(Method::POST, "/v1/locks/n", Some("billing"), None);
        let mut stream = send(&routes, acquire).await.into_body().into_data_stream();
        event_of(&mut stream).await;
        let break_it =
            request(Method::POST, "/v1/locks/n/break", Some("operator"), Some(&json!({ "reason": "r" })));
        let reply = send(&routes, break_it).await.into_body().collect().await.unwrap().to_bytes();
        let broken: Value = serde_json::from_slice(&reply).unwrap();
        assert_eq!(broken[0]["owner"], "billing", "{broken}");
        let lost = event_of(&mut stream).await;
        assert_eq!(lost["notice"], "broken by operator: r", "{lost}");
    }
}
