//! The clock by which claims expire.

use polylock_core::{Clock, Moment, RequestId, SystemClock};
use polylock_protocol::ServerTime;

/// The clock of this server.
#[derive(Debug)]
pub(crate) struct ServerClock {
    server: u64,
}

impl ServerClock {
    pub(crate) fn new() -> Self {
        let bytes = RequestId::random().to_bytes();
        Self { server: bytes.iter().fold(0, |id, byte| id.rotate_left(8) ^ u64::from(*byte)) }
    }

    /// Returns the time. The clock goes on while the process is stopped.
    pub(crate) fn now(&self) -> ServerTime {
        self.at(SystemClock.now())
    }

    /// Returns the moment at which this server's clock shows `time`.
    pub(crate) fn moment(time: ServerTime) -> Moment {
        Moment::from_nanos(u64::try_from(time.us).unwrap_or(0).saturating_mul(1000))
    }

    /// Returns the time at this moment.
    pub(crate) fn at(&self, moment: Moment) -> ServerTime {
        ServerTime { server: self.server, us: i64::try_from(moment.as_nanos() / 1000).unwrap_or(i64::MAX) }
    }
}
