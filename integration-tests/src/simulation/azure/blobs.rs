//! The blobs of a container, their leases and their metadata, as the service documents them:
//! <https://learn.microsoft.com/rest/api/storageservices/lease-blob> and the pages beside it.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use super::http::{Reply, Request, date};
use crate::simulation::{plan::Planted, servers::Life};

/// The container, with its account.
const CONTAINER: &str = "/devstoreaccount1/locks";

/// The number of blobs in a page of a list.
const PAGE_SIZE: usize = 2;

/// A second in microseconds.
const SECOND: i64 = 1_000_000;

/// The metadata with the token of a grant.
const TOKEN: &str = "polylockfence";

/// The metadata with the owner of a grant.
const OWNER: &str = "polylockowner";

/// The blobs of a container.
#[derive(Debug)]
pub struct Blobs {
    /// The service's clock, in microseconds since 1970.
    pub now_us: i64,
    planted: Option<Planted>,
    random: Rng,
    /// True if `ETag`s are times, like those of the service; otherwise they are like those of an emulator.
    has_times: bool,
    exists: bool,
    blobs: BTreeMap<String, Blob>,
    /// The last time of an `ETag`.
    last_us: i64,
    /// The ids of the leases for which a release has arrived, and the processes that have sent it.
    released: BTreeMap<String, BTreeSet<Life>>,
    /// The leases that were acquired, in order.
    pub grants: Vec<Grant>,
}

#[derive(Debug)]
struct Blob {
    etag: String,
    modified_us: i64,
    metadata: BTreeMap<String, String>,
    lease: Option<Lease>,
}

#[derive(Debug)]
struct Lease {
    id: String,
    duration_us: i64,
    ends_us: i64,
    is_broken: bool,
    /// True if a release of it had been sent before it was acquired.
    is_late: bool,
    /// Its number in [`Blobs::grants`].
    grant: usize,
}

/// A lease that was acquired.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The name of the blob.
    pub blob: String,
    /// The process that acquired it.
    pub process: Life,
    /// The processes that had sent a release of it before it was acquired. They send it again.
    pub released_by: BTreeSet<Life>,
    /// The time of its last acquisition.
    pub at_us: i64,
    /// Its end, as far as is known.
    pub ends_us: i64,
    /// The token that was written under it.
    pub token: Option<u64>,
    /// The owner that was written with the token.
    pub owner: Option<String>,
    /// True if it was broken. Then its request waits for its end, or releases it.
    pub is_broken: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseState {
    Available,
    Leased,
    Breaking,
    Broken,
    Expired,
}

impl LeaseState {
    const fn text(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Leased => "leased",
            Self::Breaking => "breaking",
            Self::Broken => "broken",
            Self::Expired => "expired",
        }
    }
}

/// The status and the code of a refusal.
type Refusal = (u16, &'static str);

const NO_BLOB: Refusal = (404, "BlobNotFound");

impl Blob {
    fn state(&self, now_us: i64) -> LeaseState {
        match &self.lease {
            None => LeaseState::Available,
            Some(lease) => match (lease.is_broken, now_us < lease.ends_us) {
                (false, true) => LeaseState::Leased,
                (false, false) => LeaseState::Expired,
                (true, true) => LeaseState::Breaking,
                (true, false) => LeaseState::Broken,
            },
        }
    }

    /// Returns true if a lease keeps others out.
    fn is_leased(&self, now_us: i64) -> bool {
        matches!(self.state(now_us), LeaseState::Leased | LeaseState::Breaking)
    }

    /// Checks the lease id of a request that reads or writes the blob.
    fn admit(&self, now_us: i64, id: Option<&str>, writes: bool) -> Result<(), Refusal> {
        let is_own = id.is_some() && self.lease.as_ref().map(|lease| lease.id.as_str()) == id;
        match (id, self.is_leased(now_us)) {
            (None, true) if writes => Err((412, "LeaseIdMissing")),
            (None, _) => Ok(()),
            (Some(_), true) if is_own => Ok(()),
            (Some(_), false) if is_own => Err((412, "LeaseLost")),
            (Some(_), false) if self.lease.is_none() => Err((412, "LeaseNotPresentWithBlobOperation")),
            (Some(_), _) => Err((412, "LeaseIdMismatchWithBlobOperation")),
        }
    }

    /// Ends a lease that keeps nobody out any more: after a change of the blob it can't be renewed.
    fn end_of_lease(&mut self, now_us: i64) {
        if !self.is_leased(now_us) {
            self.lease = None;
        }
    }

    fn headers(&self, reply: Reply) -> Reply {
        reply.header("ETag", &self.etag).header("Last-Modified", date(self.modified_us))
    }

    fn xml(&self, name: &str, now_us: i64) -> String {
        let metadata = self.metadata.iter().map(|(key, value)| format!("<{key}>{value}</{key}>"));
        format!(
            "<Blob><Name>{name}</Name><Properties><Last-Modified>{}</Last-Modified><Etag>{}</Etag>\
             <LeaseState>{}</LeaseState></Properties><Metadata>{}</Metadata></Blob>",
            date(self.modified_us),
            self.etag.trim_matches('"'),
            self.state(now_us).text(),
            metadata.collect::<String>(),
        )
    }
}

impl Blobs {
    /// Creates an account without a container.
    #[must_use]
    pub fn new(planted: Option<Planted>, mut random: Rng) -> Self {
        let has_times = random.bool();
        Self {
            now_us: 0,
            planted,
            random,
            has_times,
            exists: false,
            blobs: BTreeMap::new(),
            last_us: 0,
            released: BTreeMap::new(),
            grants: Vec::new(),
        }
    }

    /// Executes a request of a process. For a planted bug, a lease ends earlier by `early_us`.
    pub fn execute(&mut self, request: &Request, process: Life, early_us: i64) -> Reply {
        let reply = self.answer(request, process, early_us);
        let reply = reply.unwrap_or_else(|(status, code)| Reply::refusal(status, code));
        reply.header("Date", date(self.now_us)).header("x-ms-request-id", "simulated")
    }

    fn answer(&mut self, request: &Request, process: Life, early_us: i64) -> Result<Reply, Refusal> {
        let blob = request.path.strip_prefix(CONTAINER).unwrap_or_else(|| panic!("{request:?}"));
        let is_container = request.parameter("restype") == "container";
        match (request.method.as_str(), request.parameter("comp")) {
            ("PUT", "") if is_container => match std::mem::replace(&mut self.exists, true) {
                true => Err((409, "ContainerAlreadyExists")),
                false => Ok(Reply::new(201)),
            },
            _ if !self.exists => Err((404, "ContainerNotFound")),
            ("GET", "list") => Ok(self.list(request)),
            (method, comp) => {
                let name = blob.trim_start_matches('/').to_owned();
                match (method, comp) {
                    ("PUT", "lease") => self.lease(&name, request, process, early_us),
                    ("PUT", "metadata") => self.set_metadata(&name, request),
                    ("PUT", "") => self.put(name, request),
                    ("HEAD", "") => self.properties(&name, request),
                    ("DELETE", "") => self.delete(&name, request),
                    _ => panic!("an unknown request: {request:?}"),
                }
            }
        }
    }

    /// Checks the conditions of a request.
    fn check(&self, name: &str, request: &Request) -> Result<(), Refusal> {
        let etag = self.blobs.get(name).map(|blob| blob.etag.as_str());
        if request.header("if-none-match") == Some("*") && etag.is_some() {
            return Err((409, "BlobAlreadyExists"));
        }
        let wanted = request.header("if-match");
        if wanted.is_some() && wanted != etag { Err((412, "ConditionNotMet")) } else { Ok(()) }
    }

    fn new_etag(&mut self) -> String {
        const SINCE_THE_YEAR_1: i64 = 62_135_596_800 * SECOND;
        if self.has_times {
            self.last_us = self.now_us.max(self.last_us + 1);
            return format!("\"0x{:X}\"", (self.last_us + SINCE_THE_YEAR_1) * 10);
        }
        format!("\"0x1{:07X}{:08X}\"", self.random.u32(..0x1000_0000), self.random.u32(..))
    }

    /// Executes an action on the lease of a blob.
    fn lease(
        &mut self,
        name: &str,
        request: &Request,
        process: Life,
        early_us: i64,
    ) -> Result<Reply, Refusal> {
        self.check(name, request)?;
        let (now, blob) = (self.now_us, self.blobs.get_mut(name).ok_or(NO_BLOB)?);
        let state = blob.state(now);
        let number = |header| request.header(header).and_then(|it| it.parse::<i64>().ok());
        let reply = match request.header("x-ms-lease-action") {
            Some("acquire") => {
                let id = request.header("x-ms-proposed-lease-id").unwrap_or_default().to_owned();
                let duration_us = match number("x-ms-lease-duration") {
                    Some(-1) => i64::MAX / 2,
                    Some(seconds @ 15..=60) => seconds * SECOND,
                    _ => return Err((400, "InvalidHeaderValue")),
                };
                let ends_us = now + duration_us - early_us;
                match (state, &mut blob.lease) {
                    (LeaseState::Leased, Some(lease)) if lease.id == id => {
                        (lease.duration_us, lease.ends_us) = (duration_us, ends_us);
                        let grant = &mut self.grants[lease.grant];
                        (grant.at_us, grant.ends_us) = (now, ends_us);
                    }
                    (LeaseState::Breaking, Some(lease)) if lease.id == id => {
                        return Err((409, "LeaseIsBreakingAndCannotBeAcquired"));
                    }
                    (LeaseState::Leased | LeaseState::Breaking, _) => {
                        return Err((409, "LeaseAlreadyPresent"));
                    }
                    (_, lease) => {
                        let grant = self.grants.len();
                        let released_by = self.released.get(&id).cloned().unwrap_or_default();
                        let is_late = !released_by.is_empty();
                        *lease = Some(Lease {
                            id: id.clone(),
                            duration_us,
                            ends_us,
                            is_broken: false,
                            is_late,
                            grant,
                        });
                        let name = name.to_owned();
                        self.grants.push(Grant {
                            blob: name,
                            process,
                            released_by,
                            at_us: now,
                            ends_us,
                            token: None,
                            owner: None,
                            is_broken: false,
                        });
                    }
                }
                Reply::new(201).header("x-ms-lease-id", id)
            }
            Some("break") => {
                let lease = blob.lease.as_mut().ok_or((409, "LeaseNotPresentWithLeaseOperation"))?;
                let period = match self.planted {
                    Some(Planted::AzureEarlyBreak) => Some(0),
                    _ => number("x-ms-lease-break-period"),
                };
                if let Some(seconds) = period {
                    lease.ends_us = lease.ends_us.min(now + seconds * SECOND);
                }
                lease.is_broken = true;
                let grant = &mut self.grants[lease.grant];
                (grant.ends_us, grant.is_broken) = (lease.ends_us, true);
                let left = (lease.ends_us - now).max(0);
                Reply::new(202).header("x-ms-lease-time", ((left + SECOND - 1) / SECOND).to_string())
            }
            Some(action) => {
                let id = request.header("x-ms-lease-id").unwrap_or_default().to_owned();
                let is_any = action == "release" && self.planted == Some(Planted::AzureForeignRelease);
                if action == "release" {
                    self.released.entry(id.clone()).or_default().insert(process);
                }
                let lease = blob.lease.as_mut().filter(|lease| lease.id == id || is_any);
                let lease = lease.ok_or((409, "LeaseIdMismatchWithLeaseOperation"))?;
                match action {
                    "renew" if lease.is_broken && self.planted != Some(Planted::AzureUnnoticedBreak) => {
                        return Err((409, "LeaseIsBrokenAndCannotBeRenewed"));
                    }
                    "renew" if self.planted == Some(Planted::AzureFalseRenewal) => {}
                    "renew" => {
                        lease.ends_us = now + lease.duration_us - early_us;
                        self.grants[lease.grant].ends_us = lease.ends_us;
                    }
                    "release" if lease.is_late && self.planted == Some(Planted::AzureLateLease) => {}
                    "release" => {
                        let grant = &mut self.grants[lease.grant];
                        grant.ends_us = grant.ends_us.min(now);
                        blob.lease = None;
                    }
                    _ => panic!("an unknown request: {request:?}"),
                }
                Reply::new(200).header("x-ms-lease-id", id)
            }
            None => panic!("an unknown request: {request:?}"),
        };
        Ok(self.blobs[name].headers(reply))
    }

    fn set_metadata(&mut self, name: &str, request: &Request) -> Result<Reply, Refusal> {
        let id = request.header("x-ms-lease-id");
        self.blobs.get(name).ok_or(NO_BLOB)?.admit(self.now_us, id, true)?;
        self.check(name, request)?;
        let (etag, modified_us) = (self.new_etag(), self.now_us);
        let is_lost = self.planted == Some(Planted::AzureLostRecord) && self.random.u8(..4) == 0;
        let blob = self.blobs.get_mut(name).ok_or(NO_BLOB)?;
        let metadata = request.metadata();
        if let (Some(lease), Some(token)) = (&blob.lease, metadata.get(TOKEN)) {
            let owner = metadata.get(OWNER).map(|owner| owner.replace("%2E", ".").replace("%2F", "/"));
            let grant = &mut self.grants[lease.grant];
            (grant.token, grant.owner) = (token.parse().ok(), owner);
        }
        if !is_lost {
            (blob.metadata, blob.modified_us) = (metadata, modified_us);
            if self.planted != Some(Planted::AzureStaleEtag) {
                blob.etag = etag;
            }
        }
        blob.end_of_lease(self.now_us);
        Ok(blob.headers(Reply::new(200)))
    }

    fn put(&mut self, name: String, request: &Request) -> Result<Reply, Refusal> {
        self.check(&name, request)?;
        let lease = match self.blobs.get_mut(&name) {
            Some(blob) => {
                blob.admit(self.now_us, request.header("x-ms-lease-id"), true)?;
                blob.end_of_lease(self.now_us);
                blob.lease.take()
            }
            None => None,
        };
        let blob =
            Blob { etag: self.new_etag(), modified_us: self.now_us, metadata: request.metadata(), lease };
        let reply = blob.headers(Reply::new(201));
        self.blobs.insert(name, blob);
        Ok(reply)
    }

    fn properties(&self, name: &str, request: &Request) -> Result<Reply, Refusal> {
        let blob = self.blobs.get(name).ok_or(NO_BLOB)?;
        blob.admit(self.now_us, request.header("x-ms-lease-id"), false)?;
        let reply = blob.headers(Reply::new(200)).header("x-ms-lease-state", blob.state(self.now_us).text());
        let metadata = blob.metadata.iter();
        Ok(metadata.fold(reply, |reply, (name, value)| reply.header(&format!("x-ms-meta-{name}"), value)))
    }

    fn delete(&mut self, name: &str, request: &Request) -> Result<Reply, Refusal> {
        let blob = self.blobs.get(name).ok_or(NO_BLOB)?;
        blob.admit(self.now_us, request.header("x-ms-lease-id"), true)?;
        self.check(name, request)?;
        self.blobs.remove(name);
        Ok(Reply::new(202))
    }

    fn list(&self, request: &Request) -> Reply {
        let prefix = request.parameter("prefix");
        let from = request.parameter("marker").to_owned();
        let mut found = self.blobs.range(from..).filter(|(name, _)| name.starts_with(prefix));
        let page: String =
            found.by_ref().take(PAGE_SIZE).map(|(name, blob)| blob.xml(name, self.now_us)).collect();
        let next = found.next().map_or("", |(name, _)| name);
        Reply::new(200).xml(format!(
            "<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults ContainerName=\"locks\"><Blobs>{page}</Blobs>\
             <NextMarker>{next}</NextMarker></EnumerationResults>"
        ))
    }

    /// Deletes the blobs without a lease, as an operator may.
    pub fn delete_free_blobs(&mut self) {
        // Two blobs of one name in a second have the same tokens if the `ETag`s are no times.
        if self.has_times {
            let now_us = self.now_us;
            self.blobs.retain(|_, blob| blob.is_leased(now_us));
        }
    }

    /// Ends all leases.
    pub fn end_leases(&mut self) {
        for blob in self.blobs.values_mut() {
            blob.lease = None;
        }
    }

    /// Returns the leases that keep others out: the blob, the end, and the acquisition.
    pub fn live(&self) -> impl Iterator<Item = (&str, i64, &Grant)> {
        let leased = self.blobs.iter().filter(|(_, blob)| blob.is_leased(self.now_us));
        leased.filter_map(|(name, blob)| {
            let lease = blob.lease.as_ref()?;
            Some((name.as_str(), lease.ends_us, &self.grants[lease.grant]))
        })
    }
}
