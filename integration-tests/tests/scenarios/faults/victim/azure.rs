//! Azure Blob Storage, which may be busy, too.

use polylock_integration_tests::{
    servers::PrivateServer,
    targets::{self, Namespace, Own},
};
use polylock_testkit::Missing;

use super::Victim;
use crate::{azure::retry_after::busy, faults::outage::Outage};

struct Azure(Own);

pub(super) fn start() -> Result<Box<dyn Victim>, Missing> {
    Ok(Box::new(Azure(targets::own("azure")?)))
}

impl Victim for Azure {
    fn namespace(&self) -> &Namespace {
        &self.0.namespace
    }

    fn servers(&self) -> Vec<&PrivateServer> {
        self.0.servers.all().iter().collect()
    }

    fn outages(&self) -> Vec<Outage> {
        Outage::of_networks().into_iter().chain([Outage::Refused(busy(Some(1)))]).collect()
    }

    fn cause(&self, outage: &Outage) -> &'static str {
        match outage {
            Outage::Silent(_) => "no reply within",
            Outage::Unreachable => "can't be reached: check the account's name and the network",
            Outage::Refused(_) => "the service is busy",
        }
    }
}
