//! Fuzz targets: the slot tables and addresses that nodes return.

use super::topology::{self, Address};

polylock_fuzz::fuzz_targets!(tests: slots);

fn slots(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Some(address) = Address::read(&text, "replier") {
        assert!(text.ends_with(&address.port.to_string()) || text.contains(":0") || text.contains(":+"));
    }
    let Ok(reply) = redis::parse_redis_value(input) else { return };
    for range in topology::read(&reply, "replier").unwrap_or_default() {
        assert!(range.primary.port > 0 && range.primary.host != "?", "{range:?}");
    }
}
