//! Azurite, the emulator of Azure Blob Storage. Without the settings [`DURABLE`] it loses its data when it ends.
//!
//! It closes a connection that has been idle for five seconds: it ignores its setting `blobKeepAliveTimeout`.
//! It refuses versions of the protocol after 2025-11-05 unless `skipApiVersionCheck` is set; then it replies as in version 2025-11-05.

use std::{io, path::Path, time::Duration};

use async_trait::async_trait;
use polylock_testkit::Missing;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    installed,
    keeper::Keeper,
    private::{self, PrivateServer, ServerKind},
    tls,
};
use crate::clock::{self, TIMEOUT};

/// The settings with which it loses no write that it has acknowledged, nor a lease.
///
/// By itself it would lose the writes of some seconds, and forget every lease: see `azurite/durable.js`.
pub const DURABLE: &[&str] = &["location=data"];

/// The account that every emulator has.
pub const ACCOUNT: &str = "devstoreaccount1";

/// The key of that account, which is not secret.
pub const KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A shared access signature for that account: with it in its query, a request may do everything until 2100.
pub const SAS: &str = "sv=2021-06-08&ss=b&srt=sco&sp=rwdlacup&st=2020-01-01T00:00:00Z&se=2099-12-31T00:00:00Z\
    &spr=https,http&sig=QNTjLVt7OWI7TLsUECyp%2FLetWuweKpCrtsnLrIsX9vM%3D";

/// A bearer token that a server of [`start_tls`] accepts until 2100. It checks issuer, audience and time, not the signature.
pub const TOKEN: &str = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.\
    eyJhdWQiOiJodHRwczovL3N0b3JhZ2UuYXp1cmUuY29tIiwiaXNzIjoiaHR0cHM6Ly9zdHMud2luZG93cy5uZXQvcG9seWxvY2svIiwiaWF0IjoxNTc3\
    ODM2ODAwLCJuYmYiOjE1Nzc4MzY4MDAsImV4cCI6NDEwMjM1ODQwMH0.unsigned";

/// Starts one with `settings`: its options without their dashes, such as `loose` or `location=data`.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn start(settings: &[&str]) -> Result<PrivateServer, Missing> {
    private::start(Azurite::of(settings))
}

/// Starts one with the ETags of the real service, which are times, and with a clock that can be set [ahead](set_ahead).
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn start_like_the_service(settings: &[&str]) -> Result<PrivateServer, Missing> {
    private::start(Azurite { like_the_service: true, ..Azurite::of(settings) })
}

/// Sets the clock of a server of [`start_like_the_service`] ahead of the clock of this machine.
///
/// # Panics
/// If there is no such server.
pub fn set_ahead(server: &PrivateServer, ahead: Duration) {
    let file = server.directory().join("ahead");
    std::fs::write(file, ahead.as_millis().to_string())
        .unwrap_or_else(|error| panic!("can't set the clock of the server: {error}"));
}

/// Starts one that accepts only TLS, and also the [`TOKEN`]. `server.crt` in its directory is valid
/// for `localhost` and 127.0.0.1, and signed by `ca.crt`.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn start_tls(settings: &[&str]) -> Result<PrivateServer, Missing> {
    private::start(Azurite { tls: true, ..Azurite::of(settings) })
}

/// Sends a request with the [`SAS`] to the server at `url`, such as `GET /devstoreaccount1/locks/it`, and returns the complete response.
/// Headers follow on separate lines, and a body after an empty line. Lines end in `\n`.
///
/// # Errors
/// If it does not answer.
///
/// # Cancel safety
/// The server may have received the request.
pub async fn ask(url: &str, request: &str) -> io::Result<String> {
    answer(url, None, &signed(request)).await
}

/// Sends a request to a server with TLS and its certificates in `home`, without the [`SAS`]: the request has its own
/// credentials, such as `Authorization: Bearer …` with the [`TOKEN`].
///
/// # Errors
/// If it does not answer, or is not trusted.
///
/// # Cancel safety
/// The server may have received the request.
pub async fn ask_tls(url: &str, home: &Path, request: &str) -> io::Result<String> {
    answer(url, Some(home), request).await
}

fn signed(request: &str) -> String {
    let (line, rest) = request.split_once('\n').unwrap_or((request, ""));
    format!("{line}{}{SAS}\n{rest}", if line.contains('?') { '&' } else { '?' })
}

const ADVICE: &str = "run scripts/test.sh, which fetches it, or name a server in POLYLOCK_TEST_AZURE_URL";

#[derive(Debug, Default)]
pub(super) struct Azurite {
    settings: Vec<String>,
    tls: bool,
    like_the_service: bool,
}

impl Azurite {
    fn of(settings: &[&str]) -> Self {
        Self { settings: settings.iter().map(|&setting| setting.to_owned()).collect(), ..Self::default() }
    }

    /// Returns true if it has a data directory.
    fn is_durable(&self) -> bool {
        self.settings.iter().any(|setting| setting.starts_with("location="))
    }
}

#[async_trait]
impl ServerKind for Azurite {
    fn name(&self) -> &'static str {
        "azurite"
    }

    fn users(&self) -> &'static [&'static str] {
        &["nobody"]
    }

    fn prepare(&self, keeper: &mut Keeper, port: u16) -> Result<Vec<String>, Missing> {
        let node = installed::program("node", ["/usr/bin".into()], "install nodejs")?;
        let program = installed::fetched("azurite", "node_modules/azurite/dist/src/blob/main.js", ADVICE)?;
        // An account named after the directory identifies this server: another one does not know it.
        let accounts = format!("AZURITE_ACCOUNTS={ACCOUNT}:{KEY};{}:{KEY}", account_of(keeper.directory()));
        let mut command = vec!["env".to_owned(), accounts, node.display().to_string()];
        if self.is_durable() {
            let durable = keeper.write("durable.js", include_str!("../../azurite/durable.js"));
            command.extend(["--require".to_owned(), durable]);
        }
        if self.like_the_service {
            let service = keeper.write("service.js", include_str!("../../azurite/service.js"));
            command.extend(["--require".to_owned(), service]);
        }
        command.push(program.display().to_string());
        let port = format!("blobPort={port}");
        let always = ["blobHost=127.0.0.1", &port, "disableTelemetry", "silent"];
        command.extend(always.map(|option| format!("--{option}")));
        if self.tls {
            tls::certify(keeper)?;
            command.extend(["--oauth=basic", "--cert=server.crt", "--key=server.key"].map(str::to_owned));
        }
        if !self.is_durable() {
            command.push("--inMemoryPersistence".to_owned());
        }
        command.extend(self.settings.iter().map(|setting| format!("--{setting}")));
        Ok(command)
    }

    fn url(&self, port: u16) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("az://polylock@{ACCOUNT}?emulator={scheme}://127.0.0.1:{port}")
    }

    async fn data_directory(&self, url: &str, home: &Path) -> Result<String, String> {
        let request = format!("GET /{}?comp=list\n", account_of(home));
        let answer = answer(url, self.tls.then_some(home), &request).await;
        let answer = answer.map_err(|error| error.to_string())?;
        if !answer.contains("\nServer: Azurite-Blob/") {
            return Err(answer);
        }
        // Without credentials, the server refuses with 403 if it knows the account, and otherwise with another status.
        Ok(if answer.starts_with("HTTP/1.1 403 ") { home.display().to_string() } else { answer })
    }
}

/// Returns the name of the account that identifies the server in `home`.
fn account_of(home: &Path) -> String {
    home.file_name().unwrap_or_default().display().to_string()
}

/// Returns the response of the server at `url`; uses TLS if the directory with its certificates is given.
async fn answer(url: &str, certificates: Option<&Path>, request: &str) -> io::Result<String> {
    let endpoint = url.split_once("emulator=").and_then(|(_, endpoint)| endpoint.split_once("://"));
    let (_, address) = endpoint.ok_or_else(|| io::Error::other("not the URL of an emulator"))?;
    let address = address.split(['/', '&']).next().unwrap_or_default();
    let (head, body) = request.split_once("\n\n").unwrap_or((request, ""));
    let (line, headers) = head.split_once('\n').unwrap_or((head, ""));
    let mut headers = format!("Host: {address}\nContent-Length: {}\n{headers}", body.len());
    if !headers.contains("x-ms-version") {
        headers.push_str("\nx-ms-version: 2025-11-05");
    }
    // In HTTP/1.0 the response is not chunked, and ends with the connection.
    let head =
        format!("{line} HTTP/1.0\n{}\n\n", headers.replace("\n\n", "\n").trim_end()).replace('\n', "\r\n");
    let request = head + body;
    let answer = async {
        match certificates {
            Some(home) => {
                let (_openssl, from, to) = tls::connect(home, address)?;
                exchange(from, to, &request).await
            }
            None => {
                let mut server = TcpStream::connect(address).await?;
                let (from, to) = server.split();
                exchange(from, to, &request).await
            }
        }
    };
    tokio::select! {
        answer = answer => answer,
        () = clock::pause(TIMEOUT) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn exchange(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    request: &str,
) -> io::Result<String> {
    to.write_all(request.as_bytes()).await?;
    to.flush().await?;
    let mut answer = String::new();
    from.read_to_string(&mut answer).await?;
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(answer.replace("\r\n", "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_identifies_its_own_directory() {
        let kind = Azurite::default();
        let server = start(&[]).expect("it starts");
        let home = server.directory();
        let at = async |home: &Path| {
            kind.data_directory(server.url(), home).await.map(|at| kind.is_own_directory(&at, home))
        };
        assert_eq!(at(&home).await, Ok(true));
        assert_eq!(at(&home.with_extension("other")).await, Ok(false));
        server.kill();
        assert!(at(&home).await.is_err());
    }
}
