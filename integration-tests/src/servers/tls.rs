//! Certificates that live as long as their server.

use std::{io, path::Path, process::Stdio};

use polylock_testkit::Missing;
use rustls::crypto::ring;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::{installed, keeper::Keeper};

/// Makes `server.crt` and `server.key` in the keeper's directory, valid for `localhost` and 127.0.0.1, signed by
/// `ca.crt`, which nothing else is signed by. From then on this process has a provider of cryptography: the drivers bring two,
/// and some of them panic unless one is chosen.
pub(super) fn certify(keeper: &mut Keeper) -> Result<(), Missing> {
    // If there is one already, it is as good.
    ring::default_provider().install_default().ok();
    let openssl = installed::program("openssl", [], "install openssl")?.display().to_string();
    let key =
        ["req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-days", "2"];
    let authority = ["-subj", "/CN=polylock test", "-keyout", "ca.key", "-out", "ca.crt"];
    let server = ["-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.crt"];
    let names =
        ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"];
    let signed = ["-CA", "ca.crt", "-CAkey", "ca.key"];
    let openssl = [openssl.as_str()];
    keeper.run_as_user(openssl.iter().chain(&key).chain(&authority));
    keeper.run_as_user(openssl.iter().chain(&key).chain(&server).chain(&names).chain(&signed));
    Ok(())
}

/// A connection to the server at `address` with the certificates in `home`, trusted and shown; it lasts as long as the
/// process.
pub(super) fn connect(home: &Path, address: &str) -> io::Result<(Child, ChildStdout, ChildStdin)> {
    let mut openssl = Command::new("openssl")
        .args(["s_client", "-quiet", "-verify_return_error", "-verify_ip", "127.0.0.1"])
        .args(["-CAfile", "ca.crt", "-cert", "server.crt", "-key", "server.key", "-connect", address])
        .current_dir(home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let (Some(from), Some(to)) = (openssl.stdout.take(), openssl.stdin.take()) else {
        unreachable!("both are piped")
    };
    Ok((openssl, from, to))
}
