//! The switches of a proxy: the treatment of the bytes of each connection, and its end.

use std::{net::SocketAddr, time::Duration};

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From clients to the server.
    ToServer,
    /// From the server to clients.
    ToClient,
}

/// Both directions.
pub const BOTH: [Direction; 2] = [Direction::ToServer, Direction::ToClient];

/// The treatment of the bytes in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flow {
    /// They pass at once.
    #[default]
    Pass,
    /// They pass this much later.
    Delay(Duration),
    /// They are read and buffered, the end of the connection too, and pass when the flow changes, even if the sender has gone.
    Hold,
    /// They are not read: they stay in the buffers of the system, and the sender blocks when these are full.
    Stall,
    /// They are lost, the end of the connection too: the other side is not notified.
    Drop,
}

/// The end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A reset.
    Reset,
    /// An orderly end, as if each side had closed it.
    Close,
}

/// The current switches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Switches {
    /// The server for new connections.
    pub(super) server: SocketAddr,
    pub(super) flows: [Flow; 2],
    /// The flows of some connections, which override `flows`.
    pub(super) overrides: [Option<(Range, Flow)>; 2],
    /// The connections that must end.
    pub(super) cut: Option<(Range, End)>,
    pub(super) refuses: bool,
    pub(super) stopped: bool,
}

/// Connections from one number to another, both included.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range(pub(super) u64, pub(super) u64);

impl Range {
    pub(super) fn contains(self, number: u64) -> bool {
        (self.0..=self.1).contains(&number)
    }
}

impl Switches {
    pub(super) fn flow(&self, number: u64, way: Direction) -> Flow {
        let special = self.overrides[way as usize].filter(|(range, _)| range.contains(number));
        special.map_or(self.flows[way as usize], |(_, flow)| flow)
    }
}
