//! Wake-ups between processes: a datagram to the process of a waiter that was granted the lock.
//!
//! SQLite has no push. So a process that waits binds a socket in Linux's abstract namespace, under a random name that it leaves beside
//! its place in the queue, and whoever grants the lock sends the waiter's ticket there. A datagram is only a hint, because every user of
//! the machine may send one: its receiver looks into the file for its grant. And none is needed: if it is lost, or the processes are in
//! different network namespaces, or the system has no such sockets, the rounds of the poller find the grant.

use std::sync::Arc;

use polylock_core::hub::Hub;

/// The length of a socket's name: random, like a request's.
#[cfg(target_os = "linux")]
const NAME: usize = 16;

/// The socket of this process, which is bound when somebody waits for the first time.
#[derive(Debug, Default)]
pub(super) struct Wakeups {
    #[cfg(target_os = "linux")]
    socket: std::sync::OnceLock<Option<Socket>>,
}

#[cfg(target_os = "linux")]
#[derive(Debug)]
struct Socket {
    name: Vec<u8>,
    datagrams: tokio::net::UnixDatagram,
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        io,
        os::{
            linux::net::SocketAddrExt,
            unix::net::{SocketAddr, UnixDatagram},
        },
    };

    use polylock_core::RequestId;

    use super::{Arc, Hub, NAME, Socket, Wakeups};

    /// What stands before the random part of a name, for people who list sockets.
    const PREFIX: &[u8] = b"polylock-";

    fn address(name: &[u8]) -> io::Result<SocketAddr> {
        SocketAddr::from_abstract_name([PREFIX, name].concat())
    }

    impl Socket {
        fn bind() -> io::Result<Self> {
            let name = RequestId::random().to_bytes().to_vec();
            let socket = UnixDatagram::bind_addr(&address(&name)?)?;
            socket.set_nonblocking(true)?;
            Ok(Self { name, datagrams: tokio::net::UnixDatagram::from_std(socket)? })
        }
    }

    impl Wakeups {
        fn socket(&self) -> Option<&Socket> {
            let bind = || {
                Socket::bind()
                    .inspect_err(
                        |error| tracing::debug!(%error, "no wake-ups by other processes: looking instead"),
                    )
                    .ok()
            };
            self.socket.get_or_init(bind).as_ref()
        }

        /// The name that others send to.
        pub(in super::super) fn channel(&self) -> Option<&[u8]> {
            self.socket().map(|socket| socket.name.as_slice())
        }

        /// Sends `ticket` to the process at `channel`, if there is one.
        pub(in super::super) fn wake(&self, channel: &[u8], ticket: i64) {
            let sent = || -> io::Result<()> {
                if channel.len() != NAME {
                    return Err(io::ErrorKind::InvalidInput.into());
                }
                let socket = UnixDatagram::unbound()?;
                socket.set_nonblocking(true)?;
                socket.send_to_addr(&ticket.to_be_bytes(), &address(channel)?)?;
                Ok(())
            };
            if let Err(error) = sent() {
                // It has ended, or has many to read, or is elsewhere.
                tracing::trace!(%error, "not woken");
            }
        }

        /// Wakes the waiters of the tickets that come in, and never ends.
        pub(in super::super) async fn receive(&self, hub: &Arc<Hub>) {
            let Some(socket) = self.socket() else { return std::future::pending().await };
            let mut datagram = [0; 8];
            loop {
                match socket.datagrams.recv(&mut datagram).await {
                    Ok(8) => hub.wake_ticket(u64::from_be_bytes(datagram)),
                    // Not from polylock.
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(%error, "no wake-ups by other processes: looking instead");
                        return std::future::pending().await;
                    }
                }
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Wakeups {
    pub(super) fn channel(&self) -> Option<&[u8]> {
        None
    }

    pub(super) fn wake(&self, _: &[u8], _: i64) {}

    pub(super) async fn receive(&self, _: &Arc<Hub>) {
        std::future::pending().await
    }
}
