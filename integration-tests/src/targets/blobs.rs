//! Blobs of a store in Azure, deleted past the store.

use std::io;

use polylock_core::url::StoreUrl;

use super::objects::Objects;
use crate::{
    clock,
    servers::azurite::{self, ACCOUNT},
};

/// Deletes all blobs below `prefix`, leased or not. It waits for the emulator's next second: two blobs of one name that are both made
/// within one second are not distinguished there.
pub(super) async fn delete(url: &str, prefix: &str) -> io::Result<()> {
    let container = container_of(url)?;
    let list = format!("GET {container}?restype=container&comp=list&prefix={prefix}/");
    let second = date(&azurite::ask(url, &list).await?)?;
    clock::until("the next second", async || {
        azurite::ask(url, &list).await.and_then(|listed| date(&listed)).is_ok_and(|now| now != second)
    })
    .await;
    let listed = azurite::ask(url, &list).await?;
    for blob in names(&listed) {
        let blob = format!("{container}/{blob}");
        let end = "x-ms-lease-action: break\nx-ms-lease-break-period: 0";
        // One that is not leased refuses that.
        azurite::ask(url, &format!("PUT {blob}?comp=lease\n{end}")).await?;
        // A waiter that leases it first has the lock, and releases it.
        clock::until("the blob is deleted", async || {
            let deleted = azurite::ask(url, &format!("DELETE {blob}")).await;
            deleted.is_ok_and(|reply| [" 202 ", " 404 "].iter().any(|status| reply.contains(status)))
        })
        .await;
    }
    Ok(())
}

/// The blobs of these objects.
pub(super) async fn count(url: &str, objects: Objects<'_>) -> io::Result<u64> {
    let list = format!("GET {}?restype=container&comp=list&prefix={}", container_of(url)?, objects.begin);
    let listed = azurite::ask(url, &list).await?;
    Ok(names(&listed).filter(|blob| objects.contains(blob)).count() as u64)
}

/// Returns the path of the container of a URL.
fn container_of(url: &str) -> io::Result<String> {
    let parsed = StoreUrl::parse(url).map_err(io::Error::other)?;
    let container = parsed.rest().trim_start_matches('/').split(['@', '/']).next().unwrap_or_default();
    Ok(format!("/{ACCOUNT}/{container}"))
}

/// Returns the names of the blobs in the reply to a list.
fn names(listed: &str) -> impl Iterator<Item = &str> {
    let blobs = listed.split("<Name>").skip(1).filter_map(|rest| rest.split_once("</Name>"));
    blobs.map(|(name, _)| name)
}

fn date(answer: &str) -> io::Result<String> {
    let mut headers = answer.lines().filter_map(|line| line.split_once(": "));
    let date = headers.find(|(name, _)| name.eq_ignore_ascii_case("date")).map(|(_, date)| date.to_owned());
    date.ok_or_else(|| io::Error::other(format!("no date: {answer}")))
}
