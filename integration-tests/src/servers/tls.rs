//! Certificates of a server, for as long as it exists.

use std::{io, path::Path, process::Stdio};

use polylock_testkit::Missing;
use rustls::crypto::ring;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::{installed, keeper::Keeper};

/// Creates `server.crt` and `server.key` in the directory of the keeper, valid for `localhost` and 127.0.0.1, signed by
/// `ca.crt`, which signs nothing else. It also installs the cryptography provider of this process: the drivers bring two,
/// and some of them panic unless one is installed.
pub(super) fn certify(keeper: &mut Keeper) -> Result<(), Missing> {
    certify_as(keeper, None)
}

/// Like [`certify`], signed by the authority of the server in the directory `signer`.
pub(super) fn certify_as(keeper: &mut Keeper, signer: Option<&Path>) -> Result<(), Missing> {
    // An error means that one is installed already.
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
    match signer {
        Some(signer) => {
            let file = |name| signer.join(name).display().to_string();
            keeper.run_as_user(["cp", &file("ca.crt"), &file("ca.key"), "."]);
        }
        None => keeper.run_as_user(openssl.iter().chain(&key).chain(&authority)),
    }
    keeper.run_as_user(openssl.iter().chain(&key).chain(&server).chain(&names).chain(&signed));
    Ok(())
}

/// Opens a connection to the server at `address` with the certificates in `home`, for both sides. It ends with the returned process.
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
