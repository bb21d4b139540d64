//! The options of `serve`.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

use super::supervised::address;

/// The options of `serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Address and port to listen on. One that other machines can reach needs --access and --tls-cert
    #[arg(long, value_name = "ADDRESS", value_parser = address, default_value = "127.0.0.1:7420")]
    pub(crate) listen: SocketAddr,
    /// TOML file with the callers and their rights; without it, every client has all rights
    ///
    /// It is read again every two seconds; a pipe, such as <(gpg -d callers.gpg) of a shell, is read once.
    #[arg(long, value_name = "FILE")]
    pub(crate) access: Option<PathBuf>,
    /// PEM file with the certificate of the server and its chain: connections are encrypted
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// PEM file with the key of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// PEM file with the authorities of the clients' certificates, which --access names by their fingerprints
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "access"])]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Serve the metrics of the streams to Prometheus at http://ADDR/metrics, such as 127.0.0.1:9464
    #[arg(long, value_name = "ADDR", value_parser = address, hide = !cfg!(feature = "metrics"))]
    pub(crate) metrics_listen: Option<SocketAddr>,
    /// Listen on any address without --access or --tls-cert: every client that reaches it can use and break all locks
    #[arg(long)]
    pub(crate) allow_insecure: bool,
}
