//! The metadata of a lock's blob: the last token, and its holder.

use std::{collections::HashMap, time::Duration};

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use polylock_core::{BreakNotice, FencingToken, OwnerId, Request, RequestId};
use sha2::{Digest, Sha256};

// The names have no underscores, because some proxies drop headers with underscores.
const FORMAT: &str = "polylock";
const FENCE: &str = "polylockfence";
const GRANT: &str = "polylockgrant";
const OWNER: &str = "polylockowner";
const LABEL: &str = "polylocklabel";
const WAITER: &str = "polylockwaits";
const TTL: &str = "polylockttl";
const CLAIM: &str = "polylockclaim";
const BROKEN: &str = "polylockbroken";
const NOTICE: &str = "polylocknotice";

/// Encodes a text, because a header contains only ASCII.
fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn decoded(text: &str) -> Option<String> {
    Some(percent_decode_str(text).decode_utf8().ok()?.into_owned())
}

/// The notice of a break, for the holder of one grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GrantNotice {
    pub(crate) grant: Fingerprint,
    pub(crate) notice: BreakNotice,
}

impl GrantNotice {
    pub(crate) fn metadata(&self) -> HashMap<String, String> {
        let mut metadata = new_metadata();
        metadata.insert(BROKEN.to_owned(), self.grant.0.clone());
        metadata.insert(NOTICE.to_owned(), encoded(&self.notice.to_text()));
        metadata
    }

    /// Returns `None` if a blob's metadata are not those of a notice.
    pub(crate) fn read<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let notice = BreakNotice::from_text(&decoded(get(NOTICE)?)?);
        Some(Self { grant: Fingerprint(get(BROKEN)?.to_owned()), notice })
    }
}

/// Returns the metadata of a waiter marker of `process`.
pub(crate) fn marker(process: &str) -> HashMap<String, String> {
    let mut metadata = new_metadata();
    metadata.insert(WAITER.to_owned(), process.to_owned());
    metadata
}

/// Returns the process that wrote the waiter marker.
pub(crate) fn marker_process<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Option<&'a str> {
    get(WAITER)
}

/// Identifies a request without revealing its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fingerprint(String);

impl Fingerprint {
    pub(crate) fn of(request: RequestId) -> Self {
        let hash = Sha256::digest(request.to_bytes());
        Self(hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns what the record of a hold has once it is being released: the fingerprint of no request.
    pub(crate) fn ended() -> Self {
        Self("ended".to_owned())
    }
}

/// The last grant of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) token: FencingToken,
    pub(crate) grant: Fingerprint,
    pub(crate) owner: OwnerId,
    pub(crate) label: String,
    /// The duration of its lease.
    pub(crate) ttl: Duration,
    /// The duration that its claim has asked for, if a copy of that could still arrive when this was written.
    pub(crate) claim: Option<Duration>,
}

/// The content of a blob's metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// The blob belongs to a lock that was never granted.
    NeverGranted,
    Grant(Record),
    /// The blob does not belong to a lock.
    Foreign,
}

/// Returns the metadata of a new blob of a lock.
pub(crate) fn new_metadata() -> HashMap<String, String> {
    HashMap::from([(FORMAT.to_owned(), "1".to_owned())])
}

impl Record {
    /// Creates the record of the grant of `token` to `request`.
    pub(crate) fn new(request: &Request, token: FencingToken, ttl: Duration) -> Self {
        Self {
            token,
            grant: Fingerprint::of(request.id),
            owner: request.owner.clone(),
            label: request.label.as_ref().map_or("", |label| label.as_str()).to_owned(),
            ttl,
            claim: None,
        }
    }

    pub(crate) fn metadata(&self) -> HashMap<String, String> {
        let mut metadata = new_metadata();
        metadata.extend([
            (FENCE.to_owned(), self.token.to_string()),
            (GRANT.to_owned(), self.grant.0.clone()),
            (OWNER.to_owned(), encoded(self.owner.as_str())),
            (TTL.to_owned(), self.ttl.as_secs().to_string()),
        ]);
        if let Some(claim) = self.claim {
            metadata.insert(CLAIM.to_owned(), claim.as_secs().to_string());
        }
        if !self.label.is_empty() {
            metadata.insert(LABEL.to_owned(), encoded(&self.label));
        }
        metadata
    }
}

impl Content {
    /// Reads the metadata. `get` returns the value of a key.
    pub(crate) fn read<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Self {
        if get(FORMAT) != Some("1") {
            return Self::Foreign;
        }
        if get(FENCE).is_none() && get(GRANT).is_none() {
            return Self::NeverGranted;
        }
        let seconds = |text: &str| text.parse().ok().map(Duration::from_secs);
        let record = || {
            Some(Record {
                token: FencingToken::new(get(FENCE)?.parse::<i64>().ok()?)?,
                grant: Fingerprint(get(GRANT)?.to_owned()),
                owner: OwnerId::sanitized(&decoded(get(OWNER)?).filter(|owner| !owner.is_empty())?),
                label: get(LABEL).and_then(decoded).unwrap_or_default(),
                ttl: get(TTL).and_then(seconds)?,
                claim: get(CLAIM).and_then(seconds),
            })
        };
        record().map_or(Self::Foreign, Self::Grant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylock_core::{Label, LockName, Mode};
    use proptest::prelude::*;

    fn read(metadata: &HashMap<String, String>) -> Content {
        Content::read(|key| metadata.get(key).map(String::as_str))
    }

    fn record() -> Record {
        let request = Request::new(LockName::new("n").unwrap(), Mode::Exclusive, Duration::from_secs(15));
        Record::new(&request, FencingToken::new(7).unwrap(), request.ttl)
    }

    #[test]
    fn invalid_metadata_are_foreign() {
        assert_eq!(read(&new_metadata()), Content::NeverGranted);
        assert_eq!(read(&HashMap::new()), Content::Foreign);
        for (key, value) in [
            (FORMAT, "2"),
            (FENCE, ""),
            (FENCE, "-1"),
            (FENCE, "1e3"),
            (FENCE, "9223372036854775808"),
            (OWNER, ""),
            (OWNER, "%FF"),
            (TTL, "-5"),
        ] {
            let mut metadata = record().metadata();
            metadata.insert(key.to_owned(), value.to_owned());
            assert_eq!(read(&metadata), Content::Foreign, "{key} {value:?}");
        }
        for key in [FORMAT, FENCE, GRANT, OWNER, TTL] {
            let mut metadata = record().metadata();
            metadata.remove(key);
            assert_eq!(read(&metadata), Content::Foreign, "{key}");
        }
    }

    #[test]
    fn invalid_notices_are_not_parsed() {
        let metadata = record().metadata();
        assert_eq!(GrantNotice::read(|key| metadata.get(key).map(String::as_str)), None);
        assert_eq!(GrantNotice::read(|key| Some(if key == NOTICE { "%FF" } else { "x" })), None);
    }

    #[test]
    fn a_fingerprint_is_not_the_id() {
        let id = RequestId::random();
        assert_eq!(Fingerprint::of(id), Fingerprint::of(id));
        assert_ne!(Fingerprint::of(id), Fingerprint::of(RequestId::random()));
        assert!(!Fingerprint::of(id).0.contains(&format!("{:x}", u128::from_be_bytes(id.to_bytes()) >> 64)));
    }

    proptest! {
        #[test]
        fn metadata_survive_a_round_trip(owner in "[^\\pC\\p{Zl}\\p{Zp}]{1,60}", label in "[^\\pC\\p{Zl}\\p{Zp}]{0,60}", seconds in 15..61_u64) {
            let mut request =
                Request::new(LockName::new("n").unwrap(), Mode::Exclusive, Duration::from_secs(seconds));
            request.owner = OwnerId::new(&owner).unwrap();
            request.label = Some(Label::new(&label).unwrap());
            let record = Record::new(&request, FencingToken::new(seconds.cast_signed()).unwrap(), request.ttl);
            let metadata = record.metadata();
            prop_assert!(metadata.values().all(|value| value.is_ascii() && !value.is_empty()));
            prop_assert_eq!(read(&metadata), Content::Grant(record.clone()));

            let reason = request.label.filter(|label| !label.as_str().is_empty());
            for notice in [BreakNotice::new(request.owner, reason), BreakNotice::default()] {
                let written = GrantNotice { grant: record.grant.clone(), notice };
                let metadata = written.metadata();
                prop_assert!(metadata.values().all(|value| value.is_ascii() && !value.is_empty()));
                prop_assert_eq!(GrantNotice::read(|key| metadata.get(key).map(String::as_str)), Some(written));
            }
        }
    }
}
