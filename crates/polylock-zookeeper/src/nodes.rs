//! The nodes of locks: where they are, what their names say, and what is in them.
//!
//! A lock is a container node, which the servers delete when it has been empty for a while; in it each request has one
//! node, `<guid>_<mode>_<sequence>`.

use std::{borrow::Cow, fmt, time::Duration};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use polylock_core::{BreakNotice, LockName, Mode, OwnerId, Request, RequestId, queue::Standpoint};

/// All but letters, digits, `_` and `-` are encoded, so no name is another's child, `.`, or what the servers refuse.
pub(crate) const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'-');

/// The greatest sequence with which a request waits. The servers count the children of a node in 32 bits; near the end the
/// numbers stand still or turn negative. See `Claims::is_used_up`.
pub(crate) const LAST: i64 = (1 << 31) - (1 << 20);

/// From here on whoever leaves a lock empty deletes it, so that it counts anew.
pub(crate) const RENEWED_FROM: i64 = 1 << 30;

/// The half of a guid that is its own.
const HALF: u128 = u64::MAX as u128;

/// The node of a lock.
pub(crate) fn directory(root: &str, name: &LockName) -> String {
    format!("{root}/{}", utf8_percent_encode(name.as_str(), ENCODED))
}

/// The lock of a child of the root, if it is one's.
pub(crate) fn lock(child: &str) -> Option<LockName> {
    let name = percent_decode_str(child).decode_utf8().ok()?;
    let name = LockName::new(name).ok()?;
    // Written in another way it would be another node than the lock's.
    (Cow::from(utf8_percent_encode(name.as_str(), ENCODED)) == child).then_some(name)
}

/// Identifies the node of one attempt: the half that all nodes of one session share, and a random half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Guid(u128);

impl Guid {
    /// The length of its text.
    pub(crate) const DIGITS: usize = 32;

    pub(crate) fn random() -> Self {
        Self(u128::from_be_bytes(RequestId::random().to_bytes()))
    }

    /// A fresh one of the session that `other` is of.
    pub(crate) fn of_session(other: Self) -> Self {
        Self((other.0 & !HALF) | (Self::random().0 & HALF))
    }

    /// Whether both are of one session.
    pub(crate) const fn is_of_session(self, other: Self) -> bool {
        self.0 & !HALF == other.0 & !HALF
    }

    /// Reads the 32 lower-case hexadecimal digits that `Display` writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let sound = text.len() == Self::DIGITS
            && text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        u128::from_str_radix(text, 16).ok().filter(|_| sound).map(Self)
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The node of one request, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) name: String,
    pub(crate) guid: Guid,
    pub(crate) mode: Mode,
    pub(crate) sequence: i64,
}

/// The place of a request among all that have ever been in the same node of a lock, by arrival: those come last that came when the
/// sequences had turned negative.
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

    /// The one that a name says, or `None` for a stranger's node.
    fn parse(name: String) -> Option<Self> {
        let (rest, sequence) = name.rsplit_once('_')?;
        let (guid, mode) = rest.rsplit_once('_')?;
        let digits = sequence.strip_prefix('-').unwrap_or(sequence);
        let sound = (10..=19).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit());
        let guid = Guid::parse(guid)?;
        let mode = Mode::ALL.into_iter().find(|known| known.code() == mode)?;
        let sequence = sequence.parse().ok().filter(|_| sound)?;
        Some(Self { name, guid, mode, sequence })
    }
}

/// What the name of a node begins with, before the sequence that the servers put behind it.
pub(crate) fn prefix(directory: &str, guid: Guid, mode: Mode) -> String {
    format!("{directory}/{guid}_{}_", mode.code())
}

/// All requests of a lock, in order of arrival; behind them those that came when the numbers had turned negative, which
/// leave at once.
pub(crate) fn requests(children: Vec<String>) -> Vec<Child> {
    let mut requests: Vec<_> = children.into_iter().filter_map(Child::parse).collect();
    requests.sort_by_key(Child::rank);
    requests
}

/// As the grant rule sees them. Nobody is marked as a holder: whoever is one has no conflicting request before it, which
/// the rule finds by itself.
pub(crate) fn standpoints(requests: &[Child]) -> Vec<Standpoint> {
    let standpoint =
        |(at, child): (usize, &Child)| Standpoint { seq: at as u64, mode: child.mode, held: false };
    requests.iter().enumerate().map(standpoint).collect()
}

/// The data of a request's node: for people, and the notice of a break for its holder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NodeData {
    pub(crate) owner: OwnerId,
    pub(crate) label: String,
    pub(crate) lease: Duration,
    /// The notice of the break that has marked the hold.
    pub(crate) broken: Option<BreakNotice>,
}

/// The data that a request's node is created with: one line each for lease, owner and label, none of which holds a line feed. What
/// follows them is the notice of a break, see [`marked`].
pub(crate) fn data(request: &Request, lease: Duration) -> Vec<u8> {
    let label = request.label.as_ref().map_or("", |label| label.as_str());
    format!("{}\n{}\n{label}", lease.as_millis(), request.owner).into_bytes()
}

/// The same data with the notice of a break behind it. Versions that know no notices read it as part of the label.
pub(crate) fn marked(data: &[u8], notice: &BreakNotice) -> Vec<u8> {
    [data, b"\n", notice.to_text().as_bytes()].concat()
}

impl NodeData {
    /// `None` if the data are not those of a request's node.
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
    fn strangers_are_left_alone() {
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
    fn they_stand_in_order_of_their_numbers_whatever_their_text() {
        let named = |sequence: &str| format!("{}_EX_{sequence}", Guid::random());
        let sequences = ["9999999999999999999", "0000000010", "-2147483648", "0000000009", "2147483647"];
        let requests = requests(sequences.into_iter().map(named).collect());
        let numbers: Vec<_> = requests.iter().map(|child| child.sequence).collect();
        // The first is no number that fits.
        assert_eq!(numbers, [9, 10, 2_147_483_647, -2_147_483_648]);
    }

    #[test]
    fn a_node_is_found_by_its_guid() {
        let mine = Guid::random();
        let name = format!("{}0000000007", prefix("", mine, Mode::Shared)).split_off(1);
        let child = Child::parse(name).unwrap();
        assert_eq!((child.mode, child.sequence, child.guid), (Mode::Shared, 7, mine));
        let another = Guid::of_session(mine);
        assert!(another != mine && another.is_of_session(mine) && !Guid::random().is_of_session(mine));
    }

    proptest! {
        #[test]
        fn every_name_has_a_node_of_its_own(name in "\\PC{1,60}|[./%~é\u{7f}\u{1}\u{10ffff}]{1,40}") {
            let Ok(name) = LockName::new(&name) else { return Ok(()) };
            let directory = directory("/r", &name);
            let child = directory.strip_prefix("/r/").unwrap();
            prop_assert!(child.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-%".contains(&b)), "{}", child);
            prop_assert_eq!(lock(child), Some(name));
        }

        #[test]
        fn node_data_survive(owner in "[^\\pC\\p{Zl}\\p{Zp}]{1,60}", label in "[^\\pC\\p{Zl}\\p{Zp}]{0,60}", millis in 1..100_000_u64) {
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
