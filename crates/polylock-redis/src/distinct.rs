//! The servers of a list, each of which must be another one: two addresses of one server would count its vote twice.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use polylock_core::{Fault, sync::lock};

use crate::error::Cause;

/// The servers that were reached.
#[derive(Debug, Default)]
pub(crate) struct Distinct {
    /// Their run ids, by address.
    runs: Mutex<BTreeMap<String, Arc<str>>>,
    connections: AtomicU64,
}

impl Distinct {
    /// Records that a connection to `address` leads to the server process `run`, before anything else is sent on it.
    ///
    /// # Errors
    /// If another address leads to the same process, or did when it was last connected.
    pub(crate) fn check(&self, address: &str, run: &Arc<str>) -> Result<(), Cause> {
        let mut runs = lock(&self.runs);
        if let Some((other, _)) = runs.iter().find(|(other, known)| *other != address && *known == run) {
            let advice =
                format!("{other} and {address} are the same server: its vote counts once, so name it once");
            return Err(Cause::Unusable(Fault::Permanent, advice));
        }
        runs.insert(address.to_owned(), run.clone());
        self.connections.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_addresses_of_one_server_are_refused_until_one_leads_elsewhere() {
        let (servers, [first, second]) = (Distinct::default(), ["1", "2"].map(Arc::from));
        assert!(servers.check("a", &first).is_ok());
        assert!(servers.check("a", &first).is_ok(), "another connection");
        assert!(servers.check("b", &first).is_err());
        assert!(servers.check("a", &second).is_ok());
        assert!(servers.check("b", &first).is_ok());
    }
}
