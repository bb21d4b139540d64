//! Fenced writes of your own blobs: a blob keeps the greatest fencing token in its metadata, and a write with a smaller one is refused.
//!
//! A lease can't stop a holder that is paused just before its write. The blob can: **no write with a smaller token lands after one with a
//! greater token.** The lock may be in any store.
//!
//! ```no_run
//! use polylock_azure::{Config, fence};
//! use polylock_core::Guard;
//!
//! async fn pay(guard: &Guard) -> Result<(), Box<dyn std::error::Error>> {
//!     // Or a client of yours.
//!     let container = polylock_azure::container(&Config::new("az://data@myaccount?polylock.account_key=Y2FuYXJ5")?)?;
//!     let blob = container.blob_client("orders/42.json");
//!     fence::write(&blob, guard.fencing_token(), br#"{"state":"paid"}"#.to_vec(), None).await?;
//!     Ok(())
//! }
//! ```
//!
//! # Mechanism
//!
//! 1. The write reads the blob's ETag and the token in its metadata. A greater token there is the error [`Error::Stale`].
//! 2. It uploads data and token in one request, on the condition that the ETag is the same, or that there is still no blob.
//! 3. If another write came between the two, the service refuses the upload, and the write begins again.
//!
//! So the comparison and the upload are one step: of a late write and a later holder's write, the second one is refused or repeated with
//! the token of the first.
//!
//! # Requirements
//!
//! * Every writer must do the same: an upload without the condition is not refused.
//! * The upload replaces all metadata of the blob: give those that must stay with each write.
//! * A deleted blob loses its token. Write an empty one instead.
//! * An unanswered write may have been applied. A repetition with the same token is safe.

use azure_core::{
    error::ErrorKind,
    http::{Etag, RequestContent, StatusCode},
};
use azure_storage_blob::{BlobClient, models::BlockBlobClientUploadOptions};
use polylock_core::{FencingToken, metrics};

use crate::{
    NAME,
    blobs::{etag, metadata},
    error::code,
};

/// The key of the metadata with the token.
pub const KEY: &str = "fencing_token";

/// A result with this module's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason for which a write was refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A later holder of the lock has written the blob before. Nothing was written.
    #[error(
        "fencing token {token} is stale for a blob: token {current} was recorded before, so the lock was lost: stop this work, and \
         acquire the lock again to redo it"
    )]
    Stale {
        /// The token that was refused.
        token: FencingToken,
        /// The greater token that was recorded before.
        current: FencingToken,
    },
    /// The metadata of the blob have a value that is not a token. Nothing was written.
    #[error(
        "the value of {KEY} in the metadata of the blob is not a fencing token: correct it, or use another blob"
    )]
    InvalidRecord,
    /// The service refused a request, or could not be reached. The last upload may have been applied.
    #[error("the service did not carry out the request")]
    Service(#[from] azure_core::Error),
}

/// Writes `data` into `blob`, unless a greater token than `token` was recorded there before. `options` are those of the upload; its
/// conditions are replaced, and the token is added to its metadata.
///
/// It takes two round trips, and one pair more for each write that comes between them.
///
/// # Errors
/// [`Error::Stale`], [`Error::InvalidRecord`], and [`Error::Service`].
///
/// # Cancel safety
/// After a drop the blob may or may not have been written. It is safe to repeat the write.
pub async fn write(
    blob: &BlobClient,
    token: FencingToken,
    data: Vec<u8>,
    options: Option<BlockBlobClientUploadOptions<'_>>,
) -> Result<()> {
    let options = options.unwrap_or_default();
    loop {
        let (current, before) = recorded(blob).await?;
        if let Some(current) = current.filter(|current| token < *current) {
            metrics::fencing_rejected(NAME);
            return Err(Error::Stale { token, current });
        }
        let mut metadata = options.metadata.clone().unwrap_or_default();
        metadata.insert(KEY.to_owned(), token.to_string());
        let conditional = BlockBlobClientUploadOptions {
            if_none_match: before.is_none().then(|| Etag::from("*")),
            if_match: before,
            metadata: Some(metadata),
            ..options.clone()
        };
        match blob.upload(RequestContent::from(data.clone()), Some(conditional)).await {
            Ok(_) => return Ok(()),
            // The blob has changed since it was read: another write has landed.
            Err(error) if is_conflict(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the recorded token and the ETag; neither if there is no blob.
async fn recorded(blob: &BlobClient) -> Result<(Option<FencingToken>, Option<Etag>)> {
    let response = match blob.get_properties(None).await {
        Err(error) if error.http_status() == Some(StatusCode::NotFound) => return Ok((None, None)),
        reply => reply?,
    };
    let headers = response.headers();
    let token = metadata(headers, KEY).map(|text| text.parse::<i64>().ok().and_then(FencingToken::new));
    if token == Some(None) {
        return Err(Error::InvalidRecord);
    }
    // Without an ETag no condition is possible.
    let etag = etag(headers)
        .ok_or_else(|| azure_core::Error::with_message(ErrorKind::DataConversion, "the reply has no ETag"))?;
    Ok((token.flatten(), Some(etag)))
}

/// Returns true if the condition of an upload was not met.
fn is_conflict(error: &azure_core::Error) -> bool {
    matches!(code(error), Some("ConditionNotMet" | "BlobAlreadyExists"))
}
