//! Azure Blob Storage by a plain HTTP client: acquire the lease of a blob, write metadata under it, and release it.

use std::sync::Arc;

use async_trait::async_trait;
use polylock::StoreUrl;
use polylock_azure::{Config, PlainClient};

use super::client::{Floor, RawClient, store_keys};
use crate::{Error, Result};

const CREATED: u16 = 201;
const OK: u16 = 200;
const NOT_FOUND: u16 = 404;

/// One pool of connections.
#[derive(Clone)]
struct Raw {
    client: Arc<PlainClient>,
    namespace: String,
}

pub(super) async fn open(
    url: &StoreUrl,
    namespace: &str,
    floor: Floor,
) -> Result<Option<Box<dyn RawClient>>> {
    if floor == Floor::Least {
        return Ok(None);
    }
    let config = Config::from_url(url, &mut store_keys(url)?)?;
    let Some(client) = PlainClient::new(&config)? else { return Ok(None) };
    let raw = Raw { client: Arc::new(client), namespace: namespace.to_owned() };
    // The container may be missing.
    raw.client.put("", &[("restype", "container")], &[]).await.map_err(Error::raw)?;
    Ok(Some(Box::new(raw)))
}

impl Raw {
    async fn put(
        &self,
        name: &str,
        comp: Option<&str>,
        headers: &[(&'static str, &str)],
    ) -> Result<(u16, Option<String>)> {
        let query: Vec<_> = comp.map(|comp| ("comp", comp)).into_iter().collect();
        let reply = self.client.put(&format!("{}/{name}", self.namespace), &query, headers).await;
        let reply = reply.map_err(Error::raw)?;
        Ok((reply.status, reply.etag))
    }
}

/// Checks the status of a reply.
fn expect(wanted: u16, status: u16, request: &str) -> Result<()> {
    if status == wanted {
        return Ok(());
    }
    Err(Error::raw(format!("the service has replied with the status {status} to the request to {request}")))
}

#[async_trait]
impl RawClient for Raw {
    fn description(&self) -> &'static str {
        "acquire a lease, write metadata, release the lease by a plain HTTP client on one pool"
    }

    async fn pair(&mut self, name: &str, owner: [u8; 16]) -> Result<()> {
        let digits = format!("{:032x}", u128::from_be_bytes(owner));
        let id = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]).join("-");
        let acquire = [
            ("x-ms-lease-action", "acquire"),
            ("x-ms-lease-duration", "30"),
            ("x-ms-proposed-lease-id", &id),
        ];
        let (acquired, etag) = self.put(name, Some("lease"), &acquire).await?;
        if acquired == NOT_FOUND {
            // Only the first time.
            let empty = [("x-ms-blob-type", "BlockBlob"), ("if-none-match", "*")];
            let (created, _) = self.put(name, None, &empty).await?;
            return expect(CREATED, created, "create a blob");
        }
        expect(CREATED, acquired, "acquire a lease")?;
        let etag = etag.unwrap_or_default();
        let write = [("x-ms-meta-fence", "1"), ("x-ms-lease-id", id.as_str()), ("if-match", &etag)];
        let (written, _) = self.put(name, Some("metadata"), &write).await?;
        expect(OK, written, "write metadata")?;
        let release = [("x-ms-lease-action", "release"), ("x-ms-lease-id", id.as_str())];
        let (released, _) = self.put(name, Some("lease"), &release).await?;
        expect(OK, released, "release a lease")
    }

    fn share(&self) -> Option<Box<dyn RawClient>> {
        Some(Box::new(self.clone()))
    }
}
