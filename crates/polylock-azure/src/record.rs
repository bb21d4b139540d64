//! What is written at the blob of a lock: the last token, and who has it.

use std::{collections::HashMap, time::Duration};

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use polylock_core::{BreakNotice, FencingToken, OwnerId, Request, RequestId};
use sha2::{Digest, Sha256};

// Without underscores, which some proxies take out of the names of headers.
const MARK: &str = "polylock";
const FENCE: &str = "polylockfence";
const GRANT: &str = "polylockgrant";
const OWNER: &str = "polylockowner";
const LABEL: &str = "polylocklabel";
const WAITS: &str = "polylockwaits";
const TTL: &str = "polylockttl";
const BROKEN: &str = "polylockbroken";
const NOTICE: &str = "polylocknotice";

/// A header holds no more than ASCII.
fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn decoded(text: &str) -> Option<String> {
    Some(percent_decode_str(text).decode_utf8().ok()?.into_owned())
}

/// The notice of a break, for the holder of one grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) grant: Fingerprint,
    pub(crate) notice: BreakNotice,
}

impl Broken {
    pub(crate) fn metadata(&self) -> HashMap<String, String> {
        let mut metadata = fresh();
        metadata.insert(BROKEN.to_owned(), self.grant.0.clone());
        metadata.insert(NOTICE.to_owned(), encoded(&self.notice.to_text()));
        metadata
    }

    /// `None` if a blob's metadata are not those of a notice.
    pub(crate) fn read<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let notice = BreakNotice::from_text(&decoded(get(NOTICE)?)?);
        Some(Self { grant: Fingerprint(get(BROKEN)?.to_owned()), notice })
    }
}

/// What a blob says by which the process `whose` tells that it waits.
pub(crate) fn waiting(whose: &str) -> HashMap<String, String> {
    let mut metadata = fresh();
    metadata.insert(WAITS.to_owned(), whose.to_owned());
    metadata
}

/// Whose such a blob is.
pub(crate) fn who_waits<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Option<&'a str> {
    get(WAITS)
}

/// Tells a request from all others, without telling its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fingerprint(String);

impl Fingerprint {
    pub(crate) fn of(request: RequestId) -> Self {
        let hash = Sha256::digest(request.to_bytes());
        Self(hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
    }
}

/// The last grant of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) token: FencingToken,
    pub(crate) grant: Fingerprint,
    pub(crate) owner: OwnerId,
    pub(crate) label: String,
    /// How long its lease lasts.
    pub(crate) ttl: Duration,
}

/// What a blob's metadata say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Written {
    /// A lock's, which was never granted.
    Nothing,
    Grant(Record),
    /// The blob is something else.
    Strange,
}

/// What a lock's blob is made with.
pub(crate) fn fresh() -> HashMap<String, String> {
    HashMap::from([(MARK.to_owned(), "1".to_owned())])
}

impl Record {
    /// The grant of `token` to `request`.
    pub(crate) fn new(request: &Request, token: FencingToken, ttl: Duration) -> Self {
        Self {
            token,
            grant: Fingerprint::of(request.id),
            owner: request.owner.clone(),
            label: request.label.as_ref().map_or("", |label| label.as_str()).to_owned(),
            ttl,
        }
    }

    pub(crate) fn metadata(&self) -> HashMap<String, String> {
        let mut metadata = fresh();
        metadata.extend([
            (FENCE.to_owned(), self.token.to_string()),
            (GRANT.to_owned(), self.grant.0.clone()),
            (OWNER.to_owned(), encoded(self.owner.as_str())),
            (TTL.to_owned(), self.ttl.as_secs().to_string()),
        ]);
        if !self.label.is_empty() {
            metadata.insert(LABEL.to_owned(), encoded(&self.label));
        }
        metadata
    }
}

impl Written {
    /// What `get` finds under each key.
    pub(crate) fn read<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Self {
        if get(MARK) != Some("1") {
            return Self::Strange;
        }
        if get(FENCE).is_none() && get(GRANT).is_none() {
            return Self::Nothing;
        }
        let record = || {
            Some(Record {
                token: FencingToken::new(get(FENCE)?.parse::<i64>().ok()?)?,
                grant: Fingerprint(get(GRANT)?.to_owned()),
                owner: OwnerId::sanitized(&decoded(get(OWNER)?).filter(|owner| !owner.is_empty())?),
                label: get(LABEL).and_then(decoded).unwrap_or_default(),
                ttl: Duration::from_secs(get(TTL)?.parse().ok()?),
            })
        };
        record().map_or(Self::Strange, Self::Grant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylock_core::{Label, LockName, Mode};
    use proptest::prelude::*;

    fn read(metadata: &HashMap<String, String>) -> Written {
        Written::read(|key| metadata.get(key).map(String::as_str))
    }

    fn record() -> Record {
        let request = Request::new(LockName::new("n").unwrap(), Mode::Exclusive, Duration::from_secs(15));
        Record::new(&request, FencingToken::new(7).unwrap(), request.ttl)
    }

    #[test]
    fn what_is_no_locks_is_strange() {
        assert_eq!(read(&fresh()), Written::Nothing);
        assert_eq!(read(&HashMap::new()), Written::Strange);
        for (key, value) in [
            (MARK, "2"),
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
            assert_eq!(read(&metadata), Written::Strange, "{key} {value:?}");
        }
        for key in [MARK, FENCE, GRANT, OWNER, TTL] {
            let mut metadata = record().metadata();
            metadata.remove(key);
            assert_eq!(read(&metadata), Written::Strange, "{key}");
        }
    }

    #[test]
    fn what_is_no_notice_is_none() {
        let metadata = record().metadata();
        assert_eq!(Broken::read(|key| metadata.get(key).map(String::as_str)), None);
        assert_eq!(Broken::read(|key| Some(if key == NOTICE { "%FF" } else { "x" })), None);
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
        fn what_is_written_is_read(owner in "[^\\pC\\p{Zl}\\p{Zp}]{1,60}", label in "[^\\pC\\p{Zl}\\p{Zp}]{0,60}", seconds in 15..61_u64) {
            let mut request =
                Request::new(LockName::new("n").unwrap(), Mode::Exclusive, Duration::from_secs(seconds));
            request.owner = OwnerId::new(&owner).unwrap();
            request.label = Some(Label::new(&label).unwrap());
            let record = Record::new(&request, FencingToken::new(seconds.cast_signed()).unwrap(), request.ttl);
            let metadata = record.metadata();
            prop_assert!(metadata.values().all(|value| value.is_ascii() && !value.is_empty()));
            prop_assert_eq!(read(&metadata), Written::Grant(record.clone()));

            let reason = request.label.filter(|label| !label.as_str().is_empty());
            for notice in [BreakNotice::new(request.owner, reason), BreakNotice::default()] {
                let broken = Broken { grant: record.grant.clone(), notice };
                let metadata = broken.metadata();
                prop_assert!(metadata.values().all(|value| value.is_ascii() && !value.is_empty()));
                prop_assert_eq!(Broken::read(|key| metadata.get(key).map(String::as_str)), Some(broken));
            }
        }
    }
}
