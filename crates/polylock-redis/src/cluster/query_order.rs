//! The nodes that are queried for the slot table, and their order. It does no I/O.

use std::collections::BTreeSet;

use redis::ConnectionInfo;

use crate::config::address;

/// The number of nodes that are queried for the table at a time.
const CONCURRENT_QUERIES: usize = 3;
/// The maximum number of nodes that are queried for the table.
const MAX_QUERIED: usize = 9;

/// Returns the nodes to query for the table, in groups: `primaries` in this order, then `seeds` in any order, each once, and `suspect` last
/// and alone.
pub(super) fn query_order(
    mut primaries: Vec<ConnectionInfo>,
    mut seeds: Vec<ConnectionInfo>,
    suspect: Option<&str>,
) -> Vec<Vec<ConnectionInfo>> {
    primaries.truncate(MAX_QUERIED - CONCURRENT_QUERIES);
    fastrand::shuffle(&mut seeds);
    let known: BTreeSet<String> = primaries.iter().map(address).collect();
    seeds.retain(|seed| !known.contains(&address(seed)));
    let nodes = primaries.into_iter().chain(seeds).take(MAX_QUERIED);
    let (last, first): (Vec<_>, Vec<_>) = nodes.partition(|server| suspect == Some(&address(server)));
    first.chunks(CONCURRENT_QUERIES).map(<[_]>::to_vec).chain([last]).collect()
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;

    #[test]
    fn every_node_is_queried_once_and_the_suspect_last() {
        let nodes = |hosts: &[&str]| -> Vec<ConnectionInfo> {
            hosts.iter().map(|host| format!("redis://{host}").into_connection_info().unwrap()).collect()
        };
        let rounds = query_order(nodes(&["a:1", "b:2", "c:3"]), nodes(&["b:2", "d:4", "e:5"]), Some("b:2"));
        let rounds: Vec<Vec<String>> =
            rounds.iter().map(|group| group.iter().map(address).collect()).collect();
        assert_eq!(rounds.len(), 3, "{rounds:?}");
        assert_eq!(rounds[0][..2], ["a:1", "c:3"]);
        let seeds: BTreeSet<&str> = [&*rounds[0][2], &*rounds[1][0]].into();
        assert_eq!(seeds, ["d:4", "e:5"].into());
        assert_eq!(rounds[2], ["b:2"]);
        let many: Vec<String> = (1..100).map(|port| format!("h:{port}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let rounds = query_order(nodes(&many), nodes(&["seed:1"]), None);
        assert!(rounds.iter().flatten().any(|server| address(server) == "seed:1"), "a seed is queried, too");
        assert_eq!(rounds.iter().flatten().count(), MAX_QUERIED - CONCURRENT_QUERIES + 1);
    }
}
