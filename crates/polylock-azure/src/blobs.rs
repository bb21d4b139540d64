//! The requests of the store, each with a time limit of its own.
//!
//! Requests and replies: <https://learn.microsoft.com/rest/api/storageservices/lease-blob> and the pages beside it.

use std::{
    future::Future,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use azure_core::{
    http::{
        ClientMethodOptions, ClientOptions, Context, Etag, RequestContent, RetryOptions, Transport,
        headers::{HeaderName, Headers},
    },
    time::{OffsetDateTime, parse_rfc7231},
};
use azure_storage_blob::{
    BlobClient, BlobContainerClient, BlobContainerClientOptions,
    models::{
        BlobClientAcquireLeaseOptions, BlobClientBreakLeaseOptions, BlobClientDeleteOptions,
        BlobClientGetPropertiesOptions, BlobClientReleaseLeaseOptions, BlobClientRenewLeaseOptions,
        BlobClientSetMetadataOptions, BlobContainerClientListBlobsOptions, BlobItem,
        BlockBlobClientUploadOptions, ListBlobsIncludeItem,
    },
};
use futures_util::{Stream, TryStreamExt, stream};
use polylock_core::{Clock, ConfigError, LockName, Moment, SystemClock, sync::lock};

use crate::{
    account::Credential,
    config::Config,
    error::{Cause, Refusal},
    names,
    record::{self, Content, GrantNotice, Record},
    wire::{LeaseId, OWN_LEASE, RESENT, Wire},
};

/// The version of the service's API. Emulators refuse versions that they do not support.
pub(crate) const VERSION: &str = "2023-11-03";

/// The number of blobs in a page of a list.
const PAGE_SIZE: i32 = 500;

/// The container, and the path in it.
pub(crate) struct Blobs {
    pub(crate) container: BlobContainerClient,
    pub(crate) prefix: String,
    throttle: Mutex<Throttle>,
}

/// The time until which the service has requested a pause, and the time of that reply.
#[derive(Debug, Clone, Copy)]
struct Throttle {
    requested_at: Moment,
    until: Moment,
}

impl Throttle {
    fn on_retry_after(&mut self, now: Moment, pause: Duration) {
        *self = Self { requested_at: now, until: now + pause };
    }

    /// Ends the pause if the service has processed a request that was sent after it was requested.
    fn on_served(&mut self, sent: Moment) {
        if sent > self.requested_at {
            self.until = self.requested_at;
        }
    }
}

/// The reply to an acquisition of a lease.
pub(crate) struct Acquired {
    /// The ETag of the blob, which leases do not change.
    pub(crate) etag: Option<Etag>,
    /// The time since which the blob has this ETag.
    pub(crate) modified: Option<OffsetDateTime>,
    /// The service's clock.
    pub(crate) date: Option<OffsetDateTime>,
    /// True if the request had been sent before: that copy may be executed later.
    pub(crate) was_resent: bool,
}

/// The present state of a blob.
pub(crate) struct BlobState {
    pub(crate) etag: Option<Etag>,
    pub(crate) content: Content,
    /// True if a lease keeps others out.
    pub(crate) leased: bool,
    /// True if that lease was broken, and lasts until its break period is over.
    pub(crate) breaking: bool,
    /// True if that lease has no end: another program has made it.
    pub(crate) endless: bool,
    /// The time since the last change of the blob, to the second.
    pub(crate) age: Duration,
}

/// A page of a list of blobs, and the service's clock at that time.
pub(crate) type Page = (Vec<BlobItem>, Option<OffsetDateTime>);

impl Blobs {
    pub(crate) fn new(config: &Config) -> Result<Self, ConfigError> {
        let now = SystemClock.now();
        let throttle = Throttle { requested_at: now, until: now };
        Ok(Self {
            container: container(config)?,
            prefix: config.prefix.clone(),
            throttle: Mutex::new(throttle),
        })
    }

    fn blob(&self, name: &LockName) -> BlobClient {
        self.container.blob_client(&names::blob(&self.prefix, name))
    }

    /// Waits until the end of the pause that the service has requested, but no longer than `at_most`, so that a holder's lease does not
    /// expire meanwhile.
    pub(crate) async fn wait_until_allowed(&self, at_most: Duration) {
        let until = self.throttle().until;
        let now = SystemClock.now();
        if until > now {
            SystemClock.sleep_until(until.min(now + at_most)).await;
        }
    }

    /// Sends `request` and returns its reply, or an error after `timeout`.
    pub(crate) async fn send<T>(
        &self,
        timeout: Duration,
        request: impl Future<Output = azure_core::Result<T>>,
    ) -> Result<T, Cause> {
        let sent = SystemClock.now();
        let cause = match SystemClock.before(sent + timeout, request).await {
            Some(Ok(reply)) => {
                self.throttle().on_served(sent);
                return Ok(reply);
            }
            Some(Err(error)) => Cause::from(error),
            None => Cause::TimedOut(timeout),
        };
        match cause.retry_after() {
            Some(pause) => self.throttle().on_retry_after(SystemClock.now(), pause),
            None if cause.refusal().is_some() => self.throttle().on_served(sent),
            None => {}
        }
        Err(cause)
    }

    fn throttle(&self) -> MutexGuard<'_, Throttle> {
        lock(&self.throttle)
    }

    /// Acquires the lease for this long, in whole seconds, or again for as long if this id has it. With a `grant`, only if the blob has
    /// this ETag.
    pub(crate) async fn acquire(
        &self,
        name: &LockName,
        lease: &LeaseId,
        duration: Duration,
        grant: Option<&Etag>,
        timeout: Duration,
    ) -> Result<Acquired, Cause> {
        let options = BlobClientAcquireLeaseOptions {
            if_match: grant.cloned(),
            proposed_lease_id: Some(OWN_LEASE.to_owned()),
            method_options: with_lease_id(lease),
            timeout: server_timeout(timeout),
            ..BlobClientAcquireLeaseOptions::default()
        };
        let blob = self.blob(name);
        let seconds = i32::try_from(duration.as_secs()).unwrap_or(i32::MAX);
        let response = self.send(timeout, blob.acquire_lease(seconds, Some(options))).await?;
        let headers = response.headers();
        Ok(Acquired {
            etag: etag(headers),
            modified: date(headers, "last-modified"),
            date: date(headers, "date"),
            was_resent: headers.get_optional_str(&HeaderName::from_static(RESENT)).is_some(),
        })
    }

    /// Extends the lease. Returns true if the reply names this lease id.
    pub(crate) async fn renew(
        &self,
        name: &LockName,
        lease: &LeaseId,
        timeout: Duration,
    ) -> Result<bool, Cause> {
        let options = BlobClientRenewLeaseOptions {
            method_options: with_lease_id(lease),
            timeout: server_timeout(timeout),
            ..BlobClientRenewLeaseOptions::default()
        };
        let blob = self.blob(name);
        let response = self.send(timeout, blob.renew_lease(OWN_LEASE.to_owned(), Some(options))).await?;
        let lease_id = response.headers().get_optional_string(&HeaderName::from_static("x-ms-lease-id"));
        Ok(lease_id.as_deref() == Some(OWN_LEASE))
    }

    pub(crate) async fn release(
        &self,
        name: &LockName,
        lease: &LeaseId,
        timeout: Duration,
    ) -> Result<(), Cause> {
        let options = BlobClientReleaseLeaseOptions {
            method_options: with_lease_id(lease),
            timeout: server_timeout(timeout),
            ..BlobClientReleaseLeaseOptions::default()
        };
        let blob = self.blob(name);
        self.send(timeout, blob.release_lease(OWN_LEASE.to_owned(), Some(options))).await.map(drop)
    }

    /// Breaks the lease of the grant that was written with this ETag: now, or at the end of its remaining time. Returns the time for which
    /// others are still kept out, if the service returns it.
    pub(crate) async fn break_lease(
        &self,
        name: &LockName,
        now: bool,
        grant: Option<&Etag>,
        timeout: Duration,
    ) -> Result<Option<Duration>, Cause> {
        let options = BlobClientBreakLeaseOptions {
            // Without a period the lease lasts for its remaining time.
            break_period: now.then_some(0),
            if_match: grant.cloned(),
            timeout: server_timeout(timeout),
            ..BlobClientBreakLeaseOptions::default()
        };
        let blob = self.blob(name);
        let response = self.send(timeout, blob.break_lease(Some(options))).await?;
        let remaining = response.headers().get_optional_str(&HeaderName::from_static("x-ms-lease-time"));
        Ok(remaining.and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs))
    }

    /// Returns the state of the blob; with a `lease`, only if that lease is valid.
    pub(crate) async fn get_state(
        &self,
        name: &LockName,
        lease: Option<&LeaseId>,
        timeout: Duration,
    ) -> Result<BlobState, Cause> {
        let options = BlobClientGetPropertiesOptions {
            lease_id: lease.map(|_| OWN_LEASE.to_owned()),
            method_options: lease.map_or_else(ClientMethodOptions::default, with_lease_id),
            timeout: server_timeout(timeout),
            ..BlobClientGetPropertiesOptions::default()
        };
        let blob = self.blob(name);
        let response = self.send(timeout, blob.get_properties(Some(options))).await?;
        let headers = response.headers();
        let state = headers.get_optional_str(&HeaderName::from_static("x-ms-lease-state"));
        Ok(BlobState {
            etag: etag(headers),
            content: Content::read(|key| metadata(headers, key)),
            leased: matches!(state, Some("leased" | "breaking")),
            breaking: state == Some("breaking"),
            endless: headers.get_optional_str(&HeaderName::from_static("x-ms-lease-duration"))
                == Some("infinite"),
            age: age(date(headers, "date"), date(headers, "last-modified")),
        })
    }

    /// Writes a grant under the lease, if the blob still has the ETag `before`.
    pub(crate) async fn write(
        &self,
        name: &LockName,
        lease: &LeaseId,
        record: &Record,
        before: Option<&Etag>,
        timeout: Duration,
    ) -> Result<Option<Etag>, Cause> {
        let options = BlobClientSetMetadataOptions {
            lease_id: Some(OWN_LEASE.to_owned()),
            if_match: before.cloned(),
            method_options: with_lease_id(lease),
            timeout: server_timeout(timeout),
            ..BlobClientSetMetadataOptions::default()
        };
        let (blob, metadata) = (self.blob(name), record.metadata());
        let response = self.send(timeout, blob.set_metadata(&metadata, Some(options))).await?;
        Ok(etag(response.headers()))
    }

    /// Creates the blob of a lock. An existing blob is not changed.
    pub(crate) async fn create(&self, name: &LockName, timeout: Duration) -> Result<(), Cause> {
        let options = BlockBlobClientUploadOptions {
            if_none_match: Some(Etag::from("*")),
            metadata: Some(record::new_metadata()),
            ..BlockBlobClientUploadOptions::default()
        };
        let blob = self.blob(name);
        let nothing = RequestContent::from(Vec::new());
        self.send(timeout, blob.upload(nothing, Some(options))).await.map(drop)
    }

    /// Writes the waiter marker of `process` beside the lock's blob, in place of any other.
    pub(crate) async fn write_marker(
        &self,
        name: &LockName,
        process: &str,
        timeout: Duration,
    ) -> Result<(), Cause> {
        let options = BlockBlobClientUploadOptions {
            metadata: Some(record::marker(process)),
            ..BlockBlobClientUploadOptions::default()
        };
        let blob = self.container.blob_client(&names::marker(&self.prefix, name));
        let nothing = RequestContent::from(Vec::new());
        self.send(timeout, blob.upload(nothing, Some(options))).await.map(drop)
    }

    /// Returns the process of the waiter marker, and the marker's age to the second.
    pub(crate) async fn read_marker(
        &self,
        name: &LockName,
        timeout: Duration,
    ) -> Result<Option<(String, Duration)>, Cause> {
        let blob = self.container.blob_client(&names::marker(&self.prefix, name));
        let response = match self.send(timeout, blob.get_properties(None)).await {
            Err(cause) if cause.refusal() == Some(Refusal::NoBlob) => return Ok(None),
            reply => reply?,
        };
        let headers = response.headers();
        let process = record::marker_process(|key| metadata(headers, key)).map(str::to_owned);
        Ok(process.map(|process| (process, age(date(headers, "date"), date(headers, "last-modified")))))
    }

    /// Returns the notice of the last break of a lock, and the ETag of its blob.
    pub(crate) async fn notice(
        &self,
        name: &LockName,
        timeout: Duration,
    ) -> Result<Option<(GrantNotice, Option<Etag>)>, Cause> {
        let blob = self.container.blob_client(&names::notice(&self.prefix, name));
        let response = match self.send(timeout, blob.get_properties(None)).await {
            Err(cause) if cause.refusal() == Some(Refusal::NoBlob) => return Ok(None),
            reply => reply?,
        };
        let headers = response.headers();
        Ok(GrantNotice::read(|key| metadata(headers, key)).map(|notice| (notice, etag(headers))))
    }

    /// Writes the notice of a break: replaces the one with this ETag, or creates it if there is none.
    pub(crate) async fn write_notice(
        &self,
        name: &LockName,
        notice: &GrantNotice,
        before: Option<Etag>,
        timeout: Duration,
    ) -> Result<(), Cause> {
        let options = BlockBlobClientUploadOptions {
            if_none_match: before.is_none().then(|| Etag::from("*")),
            if_match: before,
            metadata: Some(notice.metadata()),
            ..BlockBlobClientUploadOptions::default()
        };
        let blob = self.container.blob_client(&names::notice(&self.prefix, name));
        let nothing = RequestContent::from(Vec::new());
        self.send(timeout, blob.upload(nothing, Some(options))).await.map(drop)
    }

    /// Deletes a blob if it still has this ETag.
    pub(crate) async fn delete(
        &self,
        blob: &str,
        etag: Option<Etag>,
        timeout: Duration,
    ) -> Result<(), Cause> {
        let options = BlobClientDeleteOptions {
            if_match: etag,
            timeout: server_timeout(timeout),
            ..BlobClientDeleteOptions::default()
        };
        let blob = self.container.blob_client(blob);
        self.send(timeout, blob.delete(Some(options))).await.map(drop)
    }

    /// Deletes a blob, although it may be leased.
    pub(crate) async fn break_and_delete(&self, blob: &str, timeout: Duration) -> Result<(), Cause> {
        let now = BlobClientBreakLeaseOptions { break_period: Some(0), ..Default::default() };
        let broken = self.send(timeout, self.container.blob_client(blob).break_lease(Some(now))).await;
        // One without a lease refuses that; a failure of another kind meets the deletion, too.
        drop(broken);
        self.delete(blob, None, timeout).await
    }

    /// Lists the blobs with names that begin with `prefix`, with their metadata, one page at a time.
    pub(crate) fn list(
        &self,
        prefix: String,
        timeout: Duration,
    ) -> Result<impl Stream<Item = Result<Page, Cause>>, Cause> {
        let options = BlobContainerClientListBlobsOptions {
            include: Some(vec![ListBlobsIncludeItem::Metadata]),
            prefix: Some(prefix),
            maxresults: Some(PAGE_SIZE),
            timeout: server_timeout(timeout),
            ..BlobContainerClientListBlobsOptions::default()
        };
        let pages = self.container.list_blobs(Some(options)).map_err(Cause::from)?.into_pages();
        Ok(stream::try_unfold(pages, move |mut pages| async move {
            let Some(page) = self.send(timeout, pages.try_next()).await? else { return Ok(None) };
            let now = date(page.headers(), "date");
            let items = page.into_model().map_err(Cause::from)?.blob_items;
            Ok(Some(((items, now), pages)))
        }))
    }

    pub(crate) async fn create_container(&self, timeout: Duration) -> Result<(), Cause> {
        self.send(timeout, self.container.create(None)).await.map(drop)
    }
}

/// Returns a client of the container of `config`, for blobs of your own: with the credentials and certificates of the store. It does not
/// retry.
///
/// # Errors
/// [`ConfigError`] if the URL of the container is not valid.
pub fn container(config: &Config) -> Result<BlobContainerClient, ConfigError> {
    let problem = |error: &dyn std::fmt::Display| ConfigError::new("store", error.to_string());
    let url = config.container_url()?;
    let token = match &config.credential {
        Some(Credential::Token(token)) => Some(token.clone()),
        _ => None,
    };
    let client_options = ClientOptions {
        // The callers retry, because they have the deadline of the lease.
        retry: RetryOptions::none(),
        transport: Some(Transport::with_policy(Arc::new(Wire::new(config)?))),
        ..ClientOptions::default()
    };
    let options = BlobContainerClientOptions { client_options, version: VERSION.to_owned() };
    BlobContainerClient::new(url, token, Some(options)).map_err(|error| problem(&error))
}

/// Puts the lease id beside the request; see [`wire`](crate::wire).
fn with_lease_id(lease: &LeaseId) -> ClientMethodOptions<'static> {
    ClientMethodOptions { context: Context::new().with_value(lease.clone()) }
}

/// Returns the time limit for the service itself, so that an abandoned request is not executed much later.
fn server_timeout(timeout: Duration) -> Option<i32> {
    i32::try_from(timeout.as_secs() + 1).ok()
}

pub(crate) fn metadata<'a>(headers: &'a Headers, key: &str) -> Option<&'a str> {
    headers.get_optional_str(&HeaderName::from(format!("x-ms-meta-{key}")))
}

pub(crate) fn etag(headers: &Headers) -> Option<Etag> {
    headers.get_optional_string(&HeaderName::from_static("etag")).map(Etag::from)
}

fn date(headers: &Headers, name: &'static str) -> Option<OffsetDateTime> {
    headers.get_optional_str(&HeaderName::from_static(name)).and_then(|date| parse_rfc7231(date).ok())
}

/// Returns the age of `then`. Both times are whole seconds, so an age below one second counts as half a second.
pub(crate) fn age(now: Option<OffsetDateTime>, then: Option<OffsetDateTime>) -> Duration {
    let seconds = now.zip(then).map_or(0, |(now, then)| (now - then).whole_seconds());
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).max(Duration::from_millis(500))
}
