//! A holder is stopped just before its write of a blob, and another one gets the lock and writes. The first one continues, and its
//! conditional write is refused.
//!
//! ```text
//! cargo run -p polylock --features azure --example fenced_azure -- 'az://locks?emulator=true'
//! ```
//!
//! With `--unfenced` before the URL the late write is a plain upload, and destroys the other holder's write. It takes 15 s, the length of
//! the shortest lease.

#[path = "shared/paused.rs"]
mod paused;

use std::time::Duration;

use paused::{Arguments, Order, Result};
use polylock::{
    FencingToken, Guard, Locks,
    azure::{self, azure_core::http::RequestContent, azure_storage_blob::BlobClient, fence},
};

struct BlobOrder(BlobClient);

impl Order for BlobOrder {
    async fn state(&self) -> Result<String> {
        let body = self.0.download(None).await?.body.collect().await?;
        Ok(String::from_utf8(body.to_vec())?)
    }

    async fn set_state(&self, state: &str, token: Option<FencingToken>) -> Result<Result<(), String>> {
        let data = state.as_bytes().to_vec();
        let Some(token) = token else {
            self.0.upload(RequestContent::from(data), None).await?;
            return Ok(Ok(()));
        };
        match fence::write(&self.0, token, data, None).await {
            Err(error @ fence::Error::Stale { .. }) => Ok(Err(error.to_string())),
            result => Ok(Ok(result?)),
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::read();
    let url = arguments.rest.last().map_or("az://locks?emulator=true", String::as_str);
    let locks = Locks::connect(url).await?;
    let container = azure::container(&azure::Config::new(url)?)?;
    let order = BlobOrder(container.blob_client("polylock-example/orders/42"));
    let acquire = async || -> Result<Guard> {
        let lock = locks.lock("orders/42").ttl(Duration::from_secs(15)).wait(Duration::from_secs(120));
        Ok(lock.acquire().await?)
    };
    if arguments.is_first {
        return paused::first(acquire().await?, &order, &arguments).await;
    }
    order.set_state("new", None).await??;
    let result = paused::demonstrate(acquire, &order, &arguments, &[url]).await;
    order.0.delete(None).await?;
    result
}
