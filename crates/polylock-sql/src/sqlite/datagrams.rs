//! Wake-ups between processes: a datagram to the process of a waiter that was granted the lock.
//!
//! SQLite has no push. So a process with waiters binds a socket in Linux's abstract namespace, under a random name that it stores in their
//! queue entries, and the releaser sends the waiter's ticket there. A datagram is only a hint, because every user of the machine may send
//! one: its receiver reads the grant from the file. No datagram is necessary: if it is lost, the processes are in different network
//! namespaces, or the system has no such sockets, the poller finds the grant.

use std::sync::Arc;

use polylock_core::wakeups::Wakeups;

/// The length of the random part of a socket's name, the same as that of a request id.
#[cfg(target_os = "linux")]
const NAME: usize = 16;

/// The socket of this process, which is bound for its first waiter.
#[derive(Debug, Default)]
pub(super) struct Datagrams {
    #[cfg(target_os = "linux")]
    socket: std::sync::OnceLock<Option<Socket>>,
}

#[cfg(target_os = "linux")]
#[derive(Debug)]
struct Socket {
    name: Vec<u8>,
    datagrams: tokio::net::UnixDatagram,
}

#[cfg(all(feature = "simulation", target_os = "linux"))]
impl Datagrams {
    /// Sends and receives none: simulated processes have no sockets, and poll.
    pub(super) fn none() -> Self {
        Self { socket: None.into() }
    }
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

    use polylock_core::{RequestId, wakeups::WaiterId};

    use super::{Arc, Datagrams, NAME, Socket, Wakeups};

    /// The prefix of the random part of a name, for people who list sockets.
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

    impl Datagrams {
        fn socket(&self) -> Option<&Socket> {
            let bind = || {
                Socket::bind()
                    .inspect_err(
                        |error| tracing::debug!(%error, "no wake-ups from other processes: polling instead"),
                    )
                    .ok()
            };
            self.socket.get_or_init(bind).as_ref()
        }

        /// Returns the random part of the socket's name, to which other processes send; `None` if there is no socket.
        pub(in super::super) fn channel(&self) -> Option<&[u8]> {
            self.socket().map(|socket| socket.name.as_slice())
        }

        /// Sends `ticket` to the process with the socket `channel`. Does not report a failure: the poller of that process finds the grant.
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
                // The process has ended, its socket is full, or it is in another network namespace.
                tracing::trace!(%error, "could not send a wake-up");
            }
        }

        /// Wakes the waiter of every ticket that arrives, and never ends.
        pub(in super::super) async fn receive(&self, wakeups: &Arc<Wakeups>) {
            let Some(socket) = self.socket() else { return std::future::pending().await };
            let mut datagram = [0; 8];
            loop {
                match socket.datagrams.recv(&mut datagram).await {
                    Ok(8) => wakeups.wake(WaiterId::Ticket(u64::from_be_bytes(datagram))),
                    // A datagram that polylock did not send.
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(%error, "no wake-ups from other processes: polling instead");
                        return std::future::pending().await;
                    }
                }
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Datagrams {
    pub(super) fn channel(&self) -> Option<&[u8]> {
        None
    }

    pub(super) fn wake(&self, _: &[u8], _: i64) {}

    pub(super) async fn receive(&self, _: &Arc<Wakeups>) {
        std::future::pending().await
    }
}
