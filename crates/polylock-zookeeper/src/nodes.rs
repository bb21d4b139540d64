//! The nodes of locks: their paths, names and data.
//!
//! A lock is a container node, which the servers delete when it has been empty for a while. Each request has one node in it,
//! `<guid>_<mode>_<sequence>`.

use std::{borrow::Cow, fmt, time::Duration};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use polylock_core::{BreakNotice, LockName, Mode, OwnerId, Request, RequestId, queue::QueueEntry};

/// All characters but letters, digits, `_` and `-` are encoded, so that no name is a child of another name, `.`, or refused by the
/// servers.
pub(crate) const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'-');

/// The greatest sequence with which a request waits. The servers count the children of a node in 32 bits; near the end the sequences stop
/// growing or turn negative. See `Node::is_beyond_last_sequence`.
pub(crate) const LAST_SEQUENCE: i64 = (1 << 31) - (1 << 20);

/// From this sequence on the last request to leave a lock deletes the lock's node, so that its sequences restart.
pub(crate) const RESTART_FROM: i64 = 1 << 30;

/// The bits of the random half of a guid.
const HALF: u128 = u64::MAX as u128;

/// Returns the path of a lock's node.
pub(crate) fn directory(root: &str, name: &LockName) -> String {
    format!("{root}/{}", utf8_percent_encode(name.as_str(), ENCODED))
}

/// Returns the lock of a child of the root; `None` if the child is not a lock's node.
pub(crate) fn lock(child: &str) -> Option<LockName> {
    let name = percent_decode_str(child).decode_utf8().ok()?;
    let name = LockName::from_store(name).ok()?;
    // A name in another encoding belongs to a node of another program.
    (Cow::from(utf8_percent_encode(name.as_str(), ENCODED)) == child).then_some(name)
}

/// Identifies the node of one attempt: a half that all nodes of one session share, and a random half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Guid(u128);

impl Guid {
    /// The number of its hexadecimal digits.
    pub(crate) const DIGITS: usize = 32;

    pub(crate) fn random() -> Self {
        Self(u128::from_be_bytes(RequestId::random().to_bytes()))
    }

    /// Returns a new guid of the session of `other`.
    pub(crate) fn of_session(other: Self) -> Self {
        Self((other.0 & !HALF) | (Self::random().0 & HALF))
    }

    /// Returns true if both belong to the same session.
    pub(crate) const fn is_of_session(self, other: Self) -> bool {
        self.0 & !HALF == other.0 & !HALF
    }

    /// Parses the 32 lower-case hexadecimal digits that `Display` writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_valid = text.len() == Self::DIGITS
            && text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        u128::from_str_radix(text, 16).ok().filter(|_| is_valid).map(Self)
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The node of one request, parsed from its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) name: String,
    pub(crate) guid: Guid,
    pub(crate) mode: Mode,
    pub(crate) sequence: i64,
}

/// The queue position of a request among all requests of the same lock node, by arrival. Negative sequences come last, since they follow
/// the overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    is_negative: bool,
    sequence: i64,
    guid: Guid,
}

impl Child {
    pub(crate) const fn rank(&self) -> Rank {
        Rank { is_negative: self.sequence < 0, sequence: self.sequence, guid: self.guid }
    }

    /// Parses the name of a node; returns `None` for the node of another program.
    fn parse(name: String) -> Option<Self> {
        let (rest, sequence) = name.rsplit_once('_')?;
        let (guid, mode) = rest.rsplit_once('_')?;
        let digits = sequence.strip_prefix('-').unwrap_or(sequence);
        let is_valid =
            (10..=19).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit());
        let guid = Guid::parse(guid)?;
        let mode = Mode::ALL.into_iter().find(|known| known.code() == mode)?;
        let sequence = sequence.parse().ok().filter(|_| is_valid)?;
        Some(Self { name, guid, mode, sequence })
    }
}

/// The path of a request's node without the sequence, which the servers append.
pub(crate) fn prefix(directory: &str, guid: Guid, mode: Mode) -> String {
    format!("{directory}/{guid}_{}_", mode.code())
}

/// Returns all requests of a lock in order of arrival. Requests with negative sequences come last; they leave at once.
pub(crate) fn requests(children: Vec<String>) -> Vec<Child> {
    let mut requests: Vec<_> = children.into_iter().filter_map(Child::parse).collect();
    requests.sort_by_key(Child::rank);
    requests
}

/// Converts requests for the grant rule. No request is marked as a holder: a holder has no conflicting request ahead of it, which the
/// rule detects by itself.
pub(crate) fn queue_entries(requests: &[Child]) -> Vec<QueueEntry> {
    let entry = |(at, child): (usize, &Child)| QueueEntry { seq: at as u64, mode: child.mode, held: false };
    requests.iter().enumerate().map(entry).collect()
}

/// The data of a request's node: its description for `inspect`, and the notice of a break for its holder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NodeData {
    pub(crate) owner: OwnerId,
    pub(crate) label: String,
    pub(crate) lease: Duration,
    /// The notice of the break that marked the hold.
    pub(crate) broken: Option<BreakNotice>,
}

/// The initial data of a request's node: one line each for lease, owner and label, none of which contains a line feed. A break appends
/// its notice, see [`marked`].
pub(crate) fn data(request: &Request, lease: Duration) -> Vec<u8> {
    let label = request.label.as_ref().map_or("", |label| label.as_str());
    format!("{}\n{}\n{label}", lease.as_millis(), request.owner).into_bytes()
}

/// Returns the data with the notice of a break appended. Versions without break notices read it as part of the label.
pub(crate) fn marked(data: &[u8], notice: &BreakNotice) -> Vec<u8> {
    [data, b"\n", notice.to_text().as_bytes()].concat()
}

impl NodeData {
    /// Parses the data of a request's node; `None` if they are not in its format.
    pub(crate) fn parse(data: &[u8]) -> Option<Self> {
        let mut lines = str::from_utf8(data).ok()?.splitn(4, '\n');
        let lease = Duration::from_millis(lines.next()?.parse().ok()?);
        let owner = OwnerId::sanitized(lines.next()?);
        let label = lines.next()?.to_owned();
        Some(Self { owner, label, lease, broken: lines.next().map(BreakNotice::from_text) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_of_other_programs_are_not_parsed() {
        let guid = Guid::random();
        for name in [
            String::new(),
            "_".to_owned(),
            "lock-0000000001".to_owned(),
            "lock-ééééééééa".to_owned(),
            format!("{guid}_EX_"),
            format!("{guid}_EX_1"),
            format!("{guid}_XX_0000000001"),
            format!("{guid}_EX_000000000x"),
            format!("{guid}_EX_+000000001"),
            format!("{guid}_EX_--0000000001"),
            format!("{guid}a_EX_0000000001"),
            format!("{}_EX_0000000001", guid.to_string().replace(|c: char| c.is_ascii_digit(), "A")),
            format!("{}_EX_0000000001", "é".repeat(16)),
        ] {
            assert_eq!(Child::parse(name.clone()), None, "{name}");
        }
    }

    #[test]
    fn requests_are_ordered_by_sequence_not_by_text() {
        let named = |sequence: &str| format!("{}_EX_{sequence}", Guid::random());
        let sequences = ["9999999999999999999", "0000000010", "-2147483648", "0000000009", "2147483647"];
        let requests = requests(sequences.into_iter().map(named).collect());
        let numbers: Vec<_> = requests.iter().map(|child| child.sequence).collect();
        // The first sequence does not fit in 64 bits.
        assert_eq!(numbers, [9, 10, 2_147_483_647, -2_147_483_648]);
    }

    #[test]
    fn a_name_contains_the_guid_of_its_session() {
        let own = Guid::random();
        let name = format!("{}0000000007", prefix("", own, Mode::Shared)).split_off(1);
        let child = Child::parse(name).unwrap();
        assert_eq!((child.mode, child.sequence, child.guid), (Mode::Shared, 7, own));
        let another = Guid::of_session(own);
        assert!(another != own && another.is_of_session(own) && !Guid::random().is_of_session(own));
    }

    proptest! {
        #[test]
        fn every_lock_has_a_separate_node(name in "\\PC{1,60}|[./%~é\u{7f}\u{1}\u{10ffff}]{1,40}") {
            let Ok(name) = LockName::new(&name) else { return Ok(()) };
            let directory = directory("/r", &name);
            let child = directory.strip_prefix("/r/").unwrap();
            prop_assert!(child.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-%".contains(&b)), "{}", child);
            prop_assert_eq!(lock(child), Some(name));
        }

        #[test]
        fn node_data_survive_a_round_trip(owner in "[^\\pC\\p{Zl}\\p{Zp}]{1,60}", label in "[^\\pC\\p{Zl}\\p{Zp}]{0,60}", millis in 1..100_000_u64) {
            let ttl = Duration::from_millis(millis);
            let mut request = Request::new(LockName::new("n").unwrap(), Mode::Exclusive, ttl);
            request.owner = OwnerId::new(&owner).unwrap();
            request.label = Some(polylock_core::Label::new(&label).unwrap());
            let data = data(&request, ttl);
            let read = NodeData::parse(&data).unwrap();
            prop_assert_eq!((read.owner.as_str(), &read.label, read.lease), (owner.as_str(), &label, ttl));
            prop_assert_eq!(&read.broken, &None);
            let reason = request.label.filter(|label| !label.as_str().is_empty());
            for notice in [BreakNotice::new(request.owner, reason), BreakNotice::default()] {
                let marked = NodeData::parse(&marked(&data, &notice)).unwrap();
                prop_assert_eq!(&marked, &NodeData { broken: Some(notice), ..NodeData::parse(&data).unwrap() });
            }
        }
    }
}
