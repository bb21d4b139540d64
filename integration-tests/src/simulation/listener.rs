//! A server's end of its connections.

use std::{collections::BTreeMap, mem, sync::Arc};

use super::{
    network::Way,
    socket::{Connection, Segment},
};

/// The connections of a server, and the bytes that have arrived on them.
#[derive(Debug, Default)]
pub struct Listener {
    stop: Option<Stop>,
    is_paused: bool,
    connections: BTreeMap<u64, (Arc<Connection>, Vec<u8>)>,
    /// The traffic that has arrived during a pause.
    arrived: Vec<(Arc<Connection>, Segment)>,
}

/// The way in which a server is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Its machine refuses connections.
    Refuses,
    /// Nothing replies.
    Silent,
}

impl Listener {
    /// Receives a part of the traffic of `connection`. Returns true if there are bytes to [read](Self::input).
    pub fn receive(&mut self, connection: &Arc<Connection>, segment: &Segment) -> bool {
        let number = connection.number;
        match (self.stop, segment) {
            (Some(Stop::Silent), _) => {}
            (Some(Stop::Refuses), _) => connection.send(Way::Back, Segment::Close),
            (None, Segment::Open) => {
                self.connections.insert(number, (connection.clone(), Vec::new()));
                connection.send(Way::Back, Segment::Open);
            }
            (None, _) if self.is_paused => self.arrived.push((connection.clone(), segment.clone())),
            (None, Segment::Close) => drop(self.connections.remove(&number)),
            (None, Segment::Data(bytes)) => match self.input(number) {
                Some(input) => {
                    input.extend(bytes);
                    return true;
                }
                None => connection.send(Way::Back, Segment::Close),
            },
        }
        false
    }

    /// Returns the bytes of a connection that were not read yet; `None` if it has ended.
    pub fn input(&mut self, connection: u64) -> Option<&mut Vec<u8>> {
        Some(&mut self.connections.get_mut(&connection)?.1)
    }

    /// Sends `bytes` on a connection, unless it has ended.
    pub fn send(&self, connection: u64, bytes: Vec<u8>) {
        if let Some((connection, _)) = self.connections.get(&connection) {
            connection.send(Way::Back, Segment::Data(bytes));
        }
    }

    /// Stops reading.
    pub const fn pause(&mut self) {
        self.is_paused = true;
    }

    /// Continues, and returns the traffic that has arrived, which is to be received again.
    pub fn resume(&mut self) -> Vec<(Arc<Connection>, Segment)> {
        self.is_paused = false;
        mem::take(&mut self.arrived)
    }

    /// Ends the connections. What has arrived is lost.
    pub fn crash(&mut self, stop: Stop) {
        self.stop = Some(stop);
        self.arrived.clear();
        for (connection, _) in mem::take(&mut self.connections).into_values() {
            if stop == Stop::Refuses {
                connection.send(Way::Back, Segment::Close);
            }
        }
    }

    /// Accepts connections again.
    pub const fn restart(&mut self) {
        self.stop = None;
    }
}
