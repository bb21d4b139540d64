//! A server in a process of its own, and requests without a client library.

use std::{fs, sync::Mutex, time::Duration};

use polylock_core::Moment;
use polylock_integration_tests::{cargo::polylock, clock::now, process::Process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// The time within which a server starts.
const START: Duration = Duration::from_secs(30);

pub(crate) struct Server {
    /// Killed at the end.
    _process: Mutex<Process>,
    id: u32,
    /// Its address and port.
    pub(crate) address: String,
}

impl Server {
    /// Starts the command, built with the profile of this program.
    pub(crate) fn start(store: &str) -> Self {
        let arguments = ["serve", "-S", store, "--listen", "127.0.0.1:0"];
        let mut process = Process::start(polylock(), arguments);
        let line = process.next_line(START).unwrap();
        let address = line.strip_prefix("http://").unwrap().to_owned();
        Self { id: process.id(), _process: Mutex::new(process), address }
    }

    /// Its memory, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id)).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Its processor time.
    pub(crate) fn processor(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id)).unwrap();
        // The name may contain spaces.
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        let connection = TcpStream::connect(&self.address).await.unwrap();
        connection.set_nodelay(true).unwrap();
        connection
    }

    /// Opens the stream of a reply.
    pub(crate) async fn open(&self, method: &str, path: &str, body: &str) -> Stream {
        let (from, mut to) = self.connect().await.into_split();
        let (host, length) = (&self.address, body.len());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        to.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        Stream { from: BufReader::new(from), _to: to }
    }
}

/// The stream of a reply. The server releases its lock when this is dropped.
pub(crate) struct Stream {
    from: BufReader<OwnedReadHalf>,
    _to: OwnedWriteHalf,
}

impl Stream {
    /// Reads up to this event, and returns the time at which it was read, and the event.
    pub(crate) async fn until(&mut self, event: &str) -> (Moment, Value) {
        let mut line = String::new();
        loop {
            line.clear();
            let length = self.from.read_line(&mut line).await.unwrap();
            assert!(length > 0, "the stream has ended before {event}");
            if line.contains(&format!("\"event\":\"{event}\"")) {
                return (now(), serde_json::from_str(&line).unwrap());
            }
        }
    }

    /// Reads until the stream ends.
    pub(crate) async fn drain(mut self) {
        let mut line = Vec::new();
        while self.from.read_until(b'\n', &mut line).await.is_ok_and(|length| length > 0) {
            line.clear();
        }
    }
}
