//! The client of the servers: the driver's or, with the feature `simulation`, also a simulated one with the same operations.

#[cfg(not(feature = "simulation"))]
pub(crate) use driver::{connect, open_stream};
#[cfg(not(feature = "simulation"))]
pub(crate) use zookeeper_client::{CheckWriter, Client, CreateMode, OneshotWatcher};

#[cfg(feature = "simulation")]
pub(crate) use crate::simulation::client::{
    CheckWriter, Client, CreateMode, OneshotWatcher, connect, open_stream,
};

#[cfg(not(feature = "simulation"))]
mod driver {
    use std::io;

    use tokio::net::TcpStream;
    use zookeeper_client::{Client, Connector, Error};

    use crate::config::Config;

    /// Opens a session on one of `servers`.
    pub(crate) async fn connect(_: &Config, connector: Connector, servers: &str) -> Result<Client, Error> {
        connector.connect(servers).await
    }

    /// Opens a connection to `server` without a session.
    pub(crate) async fn open_stream(server: &str) -> io::Result<TcpStream> {
        TcpStream::connect(server).await
    }
}
