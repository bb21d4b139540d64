//! Fenced writes of blobs.

use std::{collections::HashMap, sync::Arc, time::Duration};

use polylock::{
    FencingToken,
    azure::{
        Config,
        azure_core::http::RequestContent,
        azure_storage_blob::{BlobClient, models::BlockBlobClientUploadOptions},
        container,
        fence::{self, Error, KEY, write},
    },
};
use polylock_integration_tests::{
    clock::{now, until},
    proxy::{Proxy, RequestFault},
};

use super::{Namespace, server};

fn token(number: i64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

/// Returns a client of a blob that does not exist yet.
fn blob(url: &str, name: &str) -> BlobClient {
    container(&Config::new(url).unwrap()).unwrap().blob_client(name)
}

async fn state(blob: &BlobClient) -> String {
    let body = blob.download(None).await.unwrap().body.collect().await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

async fn write_number(blob: &BlobClient, number: i64) -> fence::Result<()> {
    write(blob, token(number), number.to_string().into_bytes(), None).await
}

/// Returns the name of a blob in a container that exists.
async fn name(namespace: &Namespace) -> String {
    // The store creates the container.
    drop(namespace.locks().await);
    format!("{}/orders/42", namespace.path.rsplit('/').next().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_accepts_no_smaller_token() {
    let namespace = Namespace::of(server());
    let blob = blob(&namespace.url, &name(&namespace).await);
    let mut last = String::new();
    for (number, passes) in
        [(0, true), (7, true), (7, true), (6, false), (10, true), (9, false), (i64::MAX, true), (0, false)]
    {
        match write_number(&blob, number).await {
            Ok(()) => last = number.to_string(),
            Err(Error::Stale { token: refused, current }) => {
                assert_eq!(refused, token(number));
                assert_eq!(current.to_string(), last);
                assert!(!passes, "{number}");
            }
            Err(error) => panic!("{number}: {error:?}"),
        }
        assert_eq!(passes, state(&blob).await == number.to_string() && last == number.to_string());
        assert_eq!(state(&blob).await, last);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_arrives_after_one_with_a_greater_token_is_refused() {
    let namespace = Namespace::of(server());
    let name = name(&namespace).await;
    let proxy = Proxy::to_http(server().port());
    let here = blob(&namespace.url, &name);
    let there = Arc::new(blob(&proxy.url(&namespace.url), &name));
    let mut delay = Duration::from_secs(2);
    // Without a blob, and with one.
    for number in [10, 20] {
        loop {
            // The late write has compared its token, and its upload is on its way.
            let faulted = proxy.counts().faulted;
            proxy.fault_next(["x-ms-blob-type: "], RequestFault::Delay(delay));
            let sent = now();
            let late = tokio::spawn({
                let there = there.clone();
                async move { write_number(&there, number).await }
            });
            until("the upload is delayed", async || proxy.counts().faulted > faulted).await;
            write_number(&here, number + 1).await.unwrap();
            let was_in_time = now().since(sent) < delay;
            let late = late.await.unwrap();
            if was_in_time {
                assert!(matches!(late, Err(Error::Stale { .. })), "{late:?}");
                assert_eq!(state(&here).await, (number + 1).to_string());
                break;
            }
            // This machine was too slow.
            delay *= 2;
            here.delete(None).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_metadata_and_foreign_values() {
    let namespace = Namespace::of(server());
    let blob = blob(&namespace.url, &name(&namespace).await);
    let options = |key: &str, value: &str| BlockBlobClientUploadOptions {
        metadata: Some(HashMap::from([(key.to_owned(), value.to_owned())])),
        ..BlockBlobClientUploadOptions::default()
    };
    write(&blob, token(3), Vec::new(), Some(options("colour", "red"))).await.unwrap();
    let head = namespace.send(&format!("HEAD {}/orders/42", namespace.path)).await;
    assert!(head.contains("x-ms-meta-colour: red") && head.contains("x-ms-meta-fencing_token: 3"), "{head}");
    for value in ["x", "-1", "9223372036854775808"] {
        blob.upload(RequestContent::from(Vec::new()), Some(options(KEY, value))).await.unwrap();
        let refused = write_number(&blob, 9).await;
        assert!(matches!(refused, Err(Error::InvalidRecord)), "{value}: {refused:?}");
    }
}

/// An error is returned, and the write does not begin again for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_blob_that_another_client_has_leased_is_not_written() {
    let namespace = Namespace::of(server());
    let blob = blob(&namespace.url, &name(&namespace).await);
    write_number(&blob, 1).await.unwrap();
    blob.acquire_lease(-1, None).await.unwrap();
    let refused = write_number(&blob, 2).await;
    assert!(matches!(refused, Err(Error::Service(_))), "{refused:?}");
    namespace.break_lease("orders/42").await;
    write_number(&blob, 2).await.unwrap();
}
