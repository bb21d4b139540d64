//! The requests that locks are made of, each with a time limit of its own.
//!
//! Forms and answers: <https://learn.microsoft.com/rest/api/storageservices/lease-blob> and its neighbours.

use std::{
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
use polylock_core::{Clock, ConfigError, LockName, Moment, SystemClock};

use crate::{
    account::Credential,
    config::Config,
    error::{Refusal, Trouble},
    names,
    record::{self, Broken, Record, Written},
    wire::{LeaseId, OURS, Wire},
};

/// The version of the service that is spoken to. Emulators refuse those that they do not know.
const VERSION: &str = "2023-11-03";

/// How many blobs are listed at a time.
const PAGE_SIZE: i32 = 500;

/// The container, and which part of it.
pub(crate) struct Blobs {
    pub(crate) container: BlobContainerClient,
    pub(crate) prefix: String,
    calm: Mutex<Calm>,
}

/// Until when the service wants to be left alone, and when it has said so.
#[derive(Debug, Clone, Copy)]
struct Calm {
    since: Moment,
    until: Moment,
}

impl Calm {
    fn told(&mut self, now: Moment, pause: Duration) {
        *self = Self { since: now, until: now + pause };
    }

    /// A request that was sent after that was served: it is over, however long it was to last.
    fn served(&mut self, sent: Moment) {
        if sent > self.since {
            self.until = self.since;
        }
    }
}

/// A lease that was acquired.
pub(crate) struct Acquired {
    /// Of the blob as it is; leases do not change it.
    pub(crate) etag: Option<Etag>,
    /// Since when the blob has this ETag.
    pub(crate) modified: Option<OffsetDateTime>,
    /// The service's clock.
    pub(crate) date: Option<OffsetDateTime>,
}

/// A blob as it is.
pub(crate) struct Seen {
    pub(crate) etag: Option<Etag>,
    pub(crate) written: Written,
    /// Whether a lease keeps others out.
    pub(crate) leased: bool,
    /// Whether that lease was broken, and lasts until its break period is over.
    pub(crate) breaking: bool,
    /// For how long it has been as it is, to the second.
    pub(crate) age: Duration,
}

/// Some of the blobs of a list, and the service's clock when they were listed.
pub(crate) type Page = (Vec<BlobItem>, Option<OffsetDateTime>);

impl Blobs {
    pub(crate) fn new(config: &Config) -> Result<Self, ConfigError> {
        let problem = |error: &dyn std::fmt::Display| ConfigError::new("store", error.to_string());
        let mut url = config.endpoint.clone();
        url.path_segments_mut()
            .map_err(|()| problem(&"the endpoint is no URL of a server"))?
            .pop_if_empty()
            .push(&config.container);
        let token = match &config.credential {
            Some(Credential::Token(token)) => Some(token.clone()),
            Some(Credential::Sas(query)) => {
                url.set_query(Some(query));
                None
            }
            _ => None,
        };
        let client_options = ClientOptions {
            // Whether, when and for how long it is tried again is for those to say who know the lease.
            retry: RetryOptions::none(),
            transport: Some(Transport::with_policy(Arc::new(Wire::new(config)?))),
            ..ClientOptions::default()
        };
        let options = BlobContainerClientOptions { client_options, version: VERSION.to_owned() };
        let container =
            BlobContainerClient::new(url, token, Some(options)).map_err(|error| problem(&error))?;
        let now = SystemClock.now();
        let calm = Calm { since: now, until: now };
        Ok(Self { container, prefix: config.prefix.clone(), calm: Mutex::new(calm) })
    }

    fn blob(&self, name: &LockName) -> BlobClient {
        self.container.blob_client(&names::blob(&self.prefix, name))
    }

    /// Waits until the service wants to hear of us again, at most this long: who holds a lease does not let it run out for that.
    pub(crate) async fn calm(&self, at_most: Duration) {
        let calm = self.lock_calm().until;
        let now = SystemClock.now();
        if calm > now {
            SystemClock.sleep_until(calm.min(now + at_most)).await;
        }
    }

    /// What `request` answers within `patience`.
    pub(crate) async fn answer<T>(
        &self,
        patience: Duration,
        request: impl Future<Output = azure_core::Result<T>>,
    ) -> Result<T, Trouble> {
        let sent = SystemClock.now();
        let trouble = match SystemClock.before(sent + patience, request).await {
            Some(Ok(answer)) => {
                self.lock_calm().served(sent);
                return Ok(answer);
            }
            Some(Err(error)) => Trouble::from(error),
            None => Trouble::Silent(patience),
        };
        match trouble.retry_after() {
            Some(pause) => self.lock_calm().told(SystemClock.now(), pause),
            None if trouble.refusal().is_some() => self.lock_calm().served(sent),
            None => {}
        }
        Err(trouble)
    }

    fn lock_calm(&self) -> MutexGuard<'_, Calm> {
        self.calm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lease for this long, in whole seconds, or for so long again.
    pub(crate) async fn acquire(
        &self,
        name: &LockName,
        lease: &LeaseId,
        lasts: Duration,
        patience: Duration,
    ) -> Result<Acquired, Trouble> {
        let options = BlobClientAcquireLeaseOptions {
            proposed_lease_id: Some(OURS.to_owned()),
            method_options: carrying(lease),
            timeout: limit(patience),
            ..BlobClientAcquireLeaseOptions::default()
        };
        let blob = self.blob(name);
        let seconds = i32::try_from(lasts.as_secs()).unwrap_or(i32::MAX);
        let response = self.answer(patience, blob.acquire_lease(seconds, Some(options))).await?;
        let headers = response.headers();
        Ok(Acquired {
            etag: etag(headers),
            modified: date(headers, "last-modified"),
            date: date(headers, "date"),
        })
    }

    /// Extends the lease; whether the answer speaks of ours.
    pub(crate) async fn renew(
        &self,
        name: &LockName,
        lease: &LeaseId,
        patience: Duration,
    ) -> Result<bool, Trouble> {
        let options = BlobClientRenewLeaseOptions {
            method_options: carrying(lease),
            timeout: limit(patience),
            ..BlobClientRenewLeaseOptions::default()
        };
        let blob = self.blob(name);
        let response = self.answer(patience, blob.renew_lease(OURS.to_owned(), Some(options))).await?;
        let told = response.headers().get_optional_string(&HeaderName::from_static("x-ms-lease-id"));
        Ok(told.as_deref() == Some(OURS))
    }

    pub(crate) async fn release(
        &self,
        name: &LockName,
        lease: &LeaseId,
        patience: Duration,
    ) -> Result<(), Trouble> {
        let options = BlobClientReleaseLeaseOptions {
            method_options: carrying(lease),
            timeout: limit(patience),
            ..BlobClientReleaseLeaseOptions::default()
        };
        let blob = self.blob(name);
        self.answer(patience, blob.release_lease(OURS.to_owned(), Some(options))).await.map(drop)
    }

    /// Breaks the lease of the grant that was written with this ETag: now, or at the end of the time that it has left. Returns
    /// how long others are kept out yet, if the service says.
    pub(crate) async fn break_lease(
        &self,
        name: &LockName,
        now: bool,
        of: Option<&Etag>,
        patience: Duration,
    ) -> Result<Option<Duration>, Trouble> {
        let options = BlobClientBreakLeaseOptions {
            // Without a period it lasts as long as it would without a renewal.
            break_period: now.then_some(0),
            if_match: of.cloned(),
            timeout: limit(patience),
            ..BlobClientBreakLeaseOptions::default()
        };
        let blob = self.blob(name);
        let response = self.answer(patience, blob.break_lease(Some(options))).await?;
        let left = response.headers().get_optional_str(&HeaderName::from_static("x-ms-lease-time"));
        Ok(left.and_then(|left| left.parse().ok()).map(Duration::from_secs))
    }

    /// How the blob is; with a `lease`, only if that is in force.
    pub(crate) async fn look(
        &self,
        name: &LockName,
        lease: Option<&LeaseId>,
        patience: Duration,
    ) -> Result<Seen, Trouble> {
        let options = BlobClientGetPropertiesOptions {
            lease_id: lease.map(|_| OURS.to_owned()),
            method_options: lease.map_or_else(ClientMethodOptions::default, carrying),
            timeout: limit(patience),
            ..BlobClientGetPropertiesOptions::default()
        };
        let blob = self.blob(name);
        let response = self.answer(patience, blob.get_properties(Some(options))).await?;
        let headers = response.headers();
        let state = headers.get_optional_str(&HeaderName::from_static("x-ms-lease-state"));
        Ok(Seen {
            etag: etag(headers),
            written: Written::read(|key| metadata(headers, key)),
            leased: matches!(state, Some("leased" | "breaking")),
            breaking: state == Some("breaking"),
            age: age(date(headers, "date"), date(headers, "last-modified")),
        })
    }

    /// Writes a grant under the lease, if the blob is still as `before` says.
    pub(crate) async fn write(
        &self,
        name: &LockName,
        lease: &LeaseId,
        record: &Record,
        before: Option<&Etag>,
        patience: Duration,
    ) -> Result<Option<Etag>, Trouble> {
        let options = BlobClientSetMetadataOptions {
            lease_id: Some(OURS.to_owned()),
            if_match: before.cloned(),
            method_options: carrying(lease),
            timeout: limit(patience),
            ..BlobClientSetMetadataOptions::default()
        };
        let (blob, metadata) = (self.blob(name), record.metadata());
        let response = self.answer(patience, blob.set_metadata(&metadata, Some(options))).await?;
        Ok(etag(response.headers()))
    }

    /// Makes the blob of a lock. One that is there already is not touched.
    pub(crate) async fn make(&self, name: &LockName, patience: Duration) -> Result<(), Trouble> {
        let options = BlockBlobClientUploadOptions {
            if_none_match: Some(Etag::from("*")),
            metadata: Some(record::fresh()),
            ..BlockBlobClientUploadOptions::default()
        };
        let blob = self.blob(name);
        let nothing = RequestContent::from(Vec::new());
        self.answer(patience, blob.upload(nothing, Some(options))).await.map(drop)
    }

    /// Leaves the mark of `whose` waiters beside the lock's blob, instead of whoever's is there.
    pub(crate) async fn leave_mark(
        &self,
        name: &LockName,
        whose: &str,
        patience: Duration,
    ) -> Result<(), Trouble> {
        let options = BlockBlobClientUploadOptions {
            metadata: Some(record::waiting(whose)),
            ..BlockBlobClientUploadOptions::default()
        };
        let blob = self.container.blob_client(&names::mark(&self.prefix, name));
        let nothing = RequestContent::from(Vec::new());
        self.answer(patience, blob.upload(nothing, Some(options))).await.map(drop)
    }

    /// Whose mark is there, and for how long, to the second.
    pub(crate) async fn mark(
        &self,
        name: &LockName,
        patience: Duration,
    ) -> Result<Option<(String, Duration)>, Trouble> {
        let blob = self.container.blob_client(&names::mark(&self.prefix, name));
        let response = match self.answer(patience, blob.get_properties(None)).await {
            Err(trouble) if trouble.refusal() == Some(Refusal::NoBlob) => return Ok(None),
            answer => answer?,
        };
        let headers = response.headers();
        let whose = record::who_waits(|key| metadata(headers, key)).map(str::to_owned);
        Ok(whose.map(|whose| (whose, age(date(headers, "date"), date(headers, "last-modified")))))
    }

    /// The notice of the last break of a lock, and the ETag of its blob.
    pub(crate) async fn notice(
        &self,
        name: &LockName,
        patience: Duration,
    ) -> Result<Option<(Broken, Option<Etag>)>, Trouble> {
        let blob = self.container.blob_client(&names::notice(&self.prefix, name));
        let response = match self.answer(patience, blob.get_properties(None)).await {
            Err(trouble) if trouble.refusal() == Some(Refusal::NoBlob) => return Ok(None),
            answer => answer?,
        };
        let headers = response.headers();
        Ok(Broken::read(|key| metadata(headers, key)).map(|broken| (broken, etag(headers))))
    }

    /// Writes the notice of a break in the place of the one that has this ETag, or where there is none.
    pub(crate) async fn write_notice(
        &self,
        name: &LockName,
        broken: &Broken,
        before: Option<Etag>,
        patience: Duration,
    ) -> Result<(), Trouble> {
        let options = BlockBlobClientUploadOptions {
            if_none_match: before.is_none().then(|| Etag::from("*")),
            if_match: before,
            metadata: Some(broken.metadata()),
            ..BlockBlobClientUploadOptions::default()
        };
        let blob = self.container.blob_client(&names::notice(&self.prefix, name));
        let nothing = RequestContent::from(Vec::new());
        self.answer(patience, blob.upload(nothing, Some(options))).await.map(drop)
    }

    /// Deletes a blob if it still has this ETag.
    pub(crate) async fn delete(
        &self,
        blob: &str,
        etag: Option<Etag>,
        patience: Duration,
    ) -> Result<(), Trouble> {
        let options = BlobClientDeleteOptions {
            if_match: etag,
            timeout: limit(patience),
            ..BlobClientDeleteOptions::default()
        };
        let blob = self.container.blob_client(blob);
        self.answer(patience, blob.delete(Some(options))).await.map(drop)
    }

    /// The blobs whose names begin with `prefix`, with their metadata, one page at a time.
    pub(crate) fn list(
        &self,
        prefix: String,
        patience: Duration,
    ) -> Result<impl Stream<Item = Result<Page, Trouble>>, Trouble> {
        let options = BlobContainerClientListBlobsOptions {
            include: Some(vec![ListBlobsIncludeItem::Metadata]),
            prefix: Some(prefix),
            maxresults: Some(PAGE_SIZE),
            timeout: limit(patience),
            ..BlobContainerClientListBlobsOptions::default()
        };
        let pages = self.container.list_blobs(Some(options)).map_err(Trouble::from)?.into_pages();
        Ok(stream::try_unfold(pages, move |mut pages| async move {
            let Some(page) = self.answer(patience, pages.try_next()).await? else { return Ok(None) };
            let now = date(page.headers(), "date");
            let items = page.into_model().map_err(Trouble::from)?.blob_items;
            Ok(Some(((items, now), pages)))
        }))
    }

    pub(crate) async fn make_container(&self, patience: Duration) -> Result<(), Trouble> {
        self.answer(patience, self.container.create(None)).await.map(drop)
    }
}

/// The id of the lease goes beside the request; see [`wire`](crate::wire).
fn carrying(lease: &LeaseId) -> ClientMethodOptions<'static> {
    ClientMethodOptions { context: Context::new().with_value(lease.clone()) }
}

/// How long the service itself may work on a request, so that one that was given up is not carried out much later.
fn limit(patience: Duration) -> Option<i32> {
    i32::try_from(patience.as_secs() + 1).ok()
}

fn metadata<'a>(headers: &'a Headers, key: &str) -> Option<&'a str> {
    headers.get_optional_str(&HeaderName::from(format!("x-ms-meta-{key}")))
}

fn etag(headers: &Headers) -> Option<Etag> {
    headers.get_optional_string(&HeaderName::from_static("etag")).map(Etag::from)
}

fn date(headers: &Headers, name: &'static str) -> Option<OffsetDateTime> {
    headers.get_optional_str(&HeaderName::from_static(name)).and_then(|date| parse_rfc7231(date).ok())
}

/// How long ago `then` was. Both are whole seconds, so within the first one it is taken for half of one.
pub(crate) fn age(now: Option<OffsetDateTime>, then: Option<OffsetDateTime>) -> Duration {
    let seconds = now.zip(then).map_or(0, |(now, then)| (now - then).whole_seconds());
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).max(Duration::from_millis(500))
}
