//! Parses the slot table that a node returns. It does no I/O.

use redis::Value;

/// A range of slots, both ends included, and the primary that serves them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) primary: Address,
}

/// The address that a node listens on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Address {
    /// Reads `host:port`. An empty host is that of the node that has replied, `replier`.
    pub(super) fn read(text: &str, replier: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Self { host: host_or(host, replier)?.to_owned(), port: port.parse().ok()? })
    }
}

/// Returns the host that a node announces. An empty one is that of the node that has replied. A question mark is a name that the node does
/// not know, and yields `None`.
fn host_or<'t>(host: &'t str, replier: &'t str) -> Option<&'t str> {
    match host {
        "" => Some(replier),
        "?" => None,
        host => Some(host.trim_start_matches('[').trim_end_matches(']')),
    }
}

/// Parses a reply to `CLUSTER SLOTS` of the node at the host `replier`: ranges of `[first, last, [host, port, …], replicas…]`. Returns
/// `None` for any other reply. A range without a known address of its primary is left out.
pub(super) fn read(reply: &Value, replier: &str) -> Option<Vec<Range>> {
    let Value::Array(ranges) = reply else { return None };
    let mut read = Vec::with_capacity(ranges.len());
    for range in ranges {
        let Value::Array(parts) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &parts[..] else {
            return None;
        };
        let [host, Value::Int(port), ..] = &primary[..] else { return None };
        let host = match host {
            Value::Nil => "",
            Value::BulkString(host) => str::from_utf8(host).ok()?,
            Value::SimpleString(host) => host,
            _ => return None,
        };
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        let (Some(host), Ok(port)) = (host_or(host, replier), u16::try_from(*port)) else { continue };
        if port > 0 {
            read.push(Range { first, last, primary: Address { host: host.to_owned(), port } });
        }
    }
    Some(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let primary = Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(Vec::new())]);
        let replica = Value::Array(vec![text("10.0.0.9"), Value::Int(7009), text("id")]);
        Value::Array(vec![Value::Int(first), Value::Int(last), primary, replica])
    }

    #[test]
    fn ranges_have_the_address_that_their_primary_announces() {
        let reply = Value::Array(vec![
            range(0, 5460, text("10.0.0.1"), 7001),
            range(5461, 9000, Value::Nil, 7002),
            range(9001, 9001, text(""), 7003),
            range(9002, 10_000, text("?"), 7004),
            range(10_001, 16_383, text("fe80::1"), 7005),
        ]);
        let read = read(&reply, "seed").unwrap();
        let found: Vec<_> =
            read.iter().map(|it| (it.first, it.last, it.primary.host.as_str(), it.primary.port)).collect();
        let expected = [
            (0, 5460, "10.0.0.1", 7001),
            (5461, 9000, "seed", 7002),
            (9001, 9001, "seed", 7003),
            (10_001, 16_383, "fe80::1", 7005),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn an_unexpected_reply_is_refused() {
        for reply in [Value::Nil, Value::Array(vec![Value::Int(1)]), Value::Array(vec![Value::Array(vec![])])]
        {
            assert_eq!(read(&reply, "h"), None);
        }
        assert_eq!(read(&Value::Array(Vec::new()), "h"), Some(Vec::new()), "no slot is served");
    }

    #[test]
    fn a_redirection_names_a_node() {
        let address = |text| Address::read(text, "here").map(|it| (it.host, it.port));
        assert_eq!(address("10.0.0.1:7001"), Some(("10.0.0.1".to_owned(), 7001)));
        assert_eq!(address(":7001"), Some(("here".to_owned(), 7001)));
        assert_eq!(address("fe80::1:7001"), Some(("fe80::1".to_owned(), 7001)));
        assert_eq!((address("?:7001"), address("nowhere"), address("h:port")), (None, None, None));
    }
}
