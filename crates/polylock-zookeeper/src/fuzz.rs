//! Fuzz targets: URLs, and the names and data of nodes, which other programs can write, too.

use polylock_core::{BreakNotice, LockName, OwnerId, url::checks};

use crate::{
    Config,
    breaks::Breaks,
    nodes::{self, Child, NodeData},
};

polylock_fuzz::fuzz_targets!(tests: urls, locks, requests, node_data, breaks);

fn urls(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    drop(Config::new(&text));
    for scheme in ["zookeeper", "zk+tls"] {
        checks::hides_password(Config::new, &text, |password| format!("{scheme}://u:{password}@h1:1,h2/p"));
    }
}

fn locks(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Some(name) = nodes::lock(&text) {
        assert_eq!(nodes::directory("", &name), format!("/{text}"));
    }
    if let Ok(name) = LockName::new(&text) {
        let directory = nodes::directory("/r", &name);
        let child = directory.strip_prefix("/r/").unwrap();
        assert!(child.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-%".contains(&byte)), "{child}");
        assert_eq!(nodes::lock(child), Some(name));
    }
}

fn requests(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let requests = nodes::requests(text.lines().map(str::to_owned).collect());
    assert!(requests.is_sorted_by_key(Child::rank), "{requests:?}");
    for (child, entry) in requests.iter().zip(nodes::queue_entries(&requests)) {
        let prefix = nodes::prefix("", child.guid, child.mode);
        let sequence = format!("/{}", child.name).strip_prefix(&prefix).and_then(|text| text.parse().ok());
        assert_eq!((sequence, entry.mode), (Some(child.sequence), child.mode));
    }
}

fn node_data(input: &[u8]) {
    let Some(data) = NodeData::parse(input) else { return };
    if data.broken.is_none() {
        let notice = BreakNotice::new(OwnerId::process(), None);
        let marked = NodeData::parse(&nodes::marked(input, &notice));
        assert_eq!(marked, Some(NodeData { broken: Some(notice), ..data }));
    }
}

fn breaks(input: &[u8]) {
    let breaks = Breaks::parse(input);
    assert_eq!(Breaks::parse(&breaks.to_bytes()), breaks);
}
