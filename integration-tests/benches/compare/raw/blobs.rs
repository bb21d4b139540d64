//! The requests that a lease of a blob with a fencing token can't do without, by a plain HTTP client on one pool.

use polylock_integration_tests::servers::azurite::{ACCOUNT, SAS};
use reqwest::{Client, StatusCode};

/// A container, and the client.
#[derive(Clone)]
pub(crate) struct Blobs {
    client: Client,
    container: String,
}

impl Blobs {
    /// In the emulator of a store's URL.
    pub(crate) async fn of(url: &str) -> Self {
        let (_, emulator) = url.split_once("emulator=").unwrap();
        let blobs = Self {
            client: Client::builder().no_proxy().build().unwrap(),
            container: format!("{emulator}/{ACCOUNT}/raw"),
        };
        let (made, _) = blobs.put("", "&restype=container", &[]).await;
        assert!(made == StatusCode::CREATED || made == StatusCode::CONFLICT);
        blobs
    }

    /// Acquires the lease, writes metadata under it, and releases it.
    pub(crate) async fn pair(&self, name: &str, owner: u128) {
        let (blob, digits) = (format!("/{name}"), format!("{owner:032x}"));
        let id = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]).join("-");
        let lease = "&comp=lease";
        let acquire = [
            ("x-ms-lease-action", "acquire"),
            ("x-ms-lease-duration", "30"),
            ("x-ms-proposed-lease-id", &id),
        ];
        let (acquired, etag) = self.put(&blob, lease, &acquire).await;
        if acquired == StatusCode::NOT_FOUND {
            // Only the first time.
            let empty = [("x-ms-blob-type", "BlockBlob"), ("if-none-match", "*")];
            assert_eq!(self.put(&blob, "", &empty).await.0, StatusCode::CREATED);
            return;
        }
        assert_eq!(acquired, StatusCode::CREATED);
        let fence = [("x-ms-meta-fence", "1"), ("x-ms-lease-id", &id), ("if-match", &etag)];
        assert_eq!(self.put(&blob, "&comp=metadata", &fence).await.0, StatusCode::OK);
        let release = [("x-ms-lease-action", "release"), ("x-ms-lease-id", &id)];
        assert_eq!(self.put(&blob, lease, &release).await.0, StatusCode::OK);
    }

    /// What it answers, and the ETag of the blob.
    async fn put(&self, blob: &str, query: &str, headers: &[(&str, &str)]) -> (StatusCode, String) {
        let mut request = self.client.put(format!("{}{blob}?{SAS}{query}", self.container));
        request = request.header("x-ms-version", "2023-11-03").header("content-length", "0");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.unwrap();
        let etag = response.headers().get("etag").and_then(|etag| etag.to_str().ok()).unwrap_or_default();
        let answer = (response.status(), etag.to_owned());
        // To its end, so that the connection is free for the next.
        response.bytes().await.unwrap();
        answer
    }
}
