//! `polylock serve`, and the service as a store.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::Duration,
};

use polylock::{Clock, SystemClock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{Workspace, stderr, stdout};

/// A server, and its URL as a store. It is killed when this is dropped.
struct Server {
    process: Child,
    url: String,
}

impl Server {
    fn of(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { process, url: format!("polylock+{}", line.trim()) }
    }

    fn start(workspace: &Workspace) -> Self {
        Self::start_with(workspace, &[])
    }

    fn start_with(workspace: &Workspace, options: &[&str]) -> Self {
        let mut command = workspace.polylock();
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(options);
        Self::of(command)
    }

    fn client(&self, workspace: &Workspace) -> Command {
        let mut command = workspace.polylock_without_store();
        command.args(["-S", &self.url]);
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

#[test]
fn clients_of_the_service_and_of_its_store_exclude_each_other() {
    let workspace = Workspace::new();
    let server = Server::start(&workspace);
    let mut run = server.client(&workspace);
    run.args(["run", "orders", "sh", "-c", "echo $POLYLOCK_FENCING_TOKEN > held; exec sleep 60"]);
    let mut holder = run.spawn().unwrap();
    workspace.wait_for_file("held");
    let token: u64 = workspace.read("held").trim().parse().unwrap();
    assert_eq!(workspace.status("orders")["holders"][0]["fencing_token"], token);
    let busy = workspace.call("run --no-wait orders true");
    assert_eq!(busy.status.code(), Some(75), "{}", stderr(&busy));
    let status = server.client(&workspace).args(["status", "orders"]).output().unwrap();
    assert!(stdout(&status).contains(&token.to_string()), "{}", stdout(&status));
    kill_process(Pid::from_child(&holder), Signal::TERM).unwrap();
    assert_eq!(holder.wait().unwrap().code(), Some(143));
    let free = server.client(&workspace).args(["run", "--no-wait", "orders", "true"]).output().unwrap();
    assert_eq!(free.status.code(), Some(0), "{}", stderr(&free));
}

#[test]
fn a_signal_ends_the_server() {
    let workspace = Workspace::new();
    let mut server = Server::start(&workspace);
    kill_process(Pid::from_child(&server.process), Signal::TERM).unwrap();
    assert_eq!(server.process.wait().unwrap().code(), Some(143));
    let output = server.client(&workspace).arg("list").output().unwrap();
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
}

/// The reply to a request with these headers and this body.
fn reply(server: &Server, path: &str, headers: &str, body: &str) -> String {
    reply_to("POST", server, path, headers, body)
}

fn reply_to(method: &str, server: &Server, path: &str, headers: &str, body: &str) -> String {
    let address = server.url.strip_prefix("polylock+http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn requests_of_web_pages_and_invalid_ones_are_refused() {
    let workspace = Workspace::new();
    let server = Server::start(&workspace);
    let json = "Content-Type: application/json\r\n";
    let name = r#"{"name":"orders"}"#;
    for (path, headers, body, status, word) in [
        ("/v1/store/inspect", json, name, "200", "holders"),
        ("/v1/store/inspect", &format!("{json}Origin: https://example.com\r\n"), name, "403", "forbidden"),
        ("/v1/store/inspect", "Content-Type: text/plain\r\n", name, "415", "media-type"),
        ("/v1/store/inspect", json, r#"{"nam":"orders"}"#, "422", "invalid-body"),
        ("/v1/store/inspect", json, r#"{"name":""}"#, "422", "invalid-body"),
        ("/v1/store/inspect", json, "{", "422", "invalid-body"),
        ("/v1/store", json, name, "405", "method"),
        ("/v1/stores", json, name, "404", "not-found"),
    ] {
        let reply = reply(&server, path, headers, body);
        assert!(
            reply.starts_with(&format!("HTTP/1.1 {status} ")) && reply.contains(word),
            "{path} {body}: {reply}"
        );
        assert!(reply.contains("polylock-clock: "), "{reply}");
    }
}

/// The lines of a stream. Closed when this is dropped.
struct Stream(BufReader<TcpStream>);

impl Stream {
    /// Requests the lock.
    fn open(server: &Server, name: &str, body: &str) -> Self {
        let address = server.url.strip_prefix("polylock+http://").unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let (length, json) = (body.len(), "Content-Type: application/json");
        write!(stream, "POST /v1/locks/{name} HTTP/1.1\r\nHost: {address}\r\n{json}\r\nContent-Length: {length}\r\n\r\n{body}")
            .unwrap();
        Self(BufReader::new(stream))
    }

    /// The next event.
    fn next(&mut self) -> Value {
        let mut line = String::new();
        while !line.starts_with('{') {
            line.clear();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "the stream has ended");
        }
        serde_json::from_str(&line).unwrap()
    }
}

#[test]
fn a_stream_with_renew_keeps_a_lock_until_it_is_released() {
    let workspace = Workspace::new();
    let server = Server::start(&workspace);
    let mut first = Stream::open(&server, "orders%2F42", r#"{"label":"first"}"#);
    let granted = first.next();
    assert_eq!(granted["event"], "granted", "{granted}");
    let status = workspace.status("orders/42");
    assert_eq!(status["holders"][0]["fencing_token"], granted["fencing_token"]);
    assert_eq!(status["holders"][0]["label"], "first");
    let mut second = Stream::open(&server, "orders%2F42", r#"{"renew":true}"#);
    assert_eq!(second.next(), json!({ "event": "queued", "position": 2 }));
    let mut busy = Stream::open(&server, "orders%2F42", r#"{"wait":"0s"}"#);
    assert_eq!(busy.next()["type"], "urn:polylock:busy");
    let release = |granted: &Value| {
        let path = format!("/v1/holds/{}?name=orders%2F42", granted["id"].as_str().unwrap());
        assert!(reply_to("DELETE", &server, &path, "", "").contains(r#"{"released":true}"#));
    };
    release(&granted);
    let next = second.next();
    assert_eq!(next["event"], "granted", "{next}");
    assert!(next["fencing_token"].as_u64() > granted["fencing_token"].as_u64());

    let broken = workspace.call("break orders/42 --yes --reason stop");
    assert_eq!(broken.status.code(), Some(0), "{}", stderr(&broken));
    let mut lost = second.next();
    while lost["event"] == "renewed" {
        lost = second.next();
    }
    assert_eq!((&lost["event"], &lost["reason"]), (&"lost".into(), &"broken".into()));
    // The client has not ended its work.
    assert_eq!(workspace.call("run --no-wait orders/42 true").status.code(), Some(75));
    // The end of the connection is no release: the network may have cut it.
    drop(second);
    assert_eq!(workspace.call("run --wait 1s orders/42 true").status.code(), Some(75));
    release(&next);
    assert_eq!(workspace.call("run --no-wait orders/42 true").status.code(), Some(0));
}

#[test]
fn a_lock_is_held_without_a_connection_by_the_id_of_the_client() {
    let workspace = Workspace::new();
    let server = Server::start(&workspace);
    let (one, other) = ("0".repeat(31) + "1", "0".repeat(31) + "2");
    let body = r#"{"name":"orders","ttl":"20s"}"#;
    let put = |id: &str, headers: &str| {
        let headers = format!("Content-Type: application/json\r\n{headers}");
        let reply = reply_to("PUT", &server, &format!("/v1/holds/{id}"), &headers, body);
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        (head[9..12].to_owned(), serde_json::from_str::<Value>(body).unwrap())
    };
    let delete = |id: &str| reply_to("DELETE", &server, &format!("/v1/holds/{id}?name=orders"), "", "");
    let (status, held) = put(&one, "");
    assert_eq!(status, "200", "{held}");
    assert_eq!(workspace.status("orders")["holders"][0]["fencing_token"], held["fencing_token"]);
    let (status, renewed) = put(&one, "");
    assert_eq!((&*status, &renewed["fencing_token"]), ("200", &held["fencing_token"]));
    assert_ne!(renewed["until"], held["until"]);
    let (status, waits) = put(&other, "Prefer: wait=1\r\n");
    assert_eq!((&*status, &waits["position"]), ("202", &2.into()));
    assert!(delete(&one).contains(r#"{"released":true}"#));
    let (status, next) = put(&other, "Prefer: wait=10\r\n");
    assert_eq!(status, "200", "{next}");
    assert!(next["fencing_token"].as_u64() > held["fencing_token"].as_u64());
    // A copy of the claim that arrives late.
    assert_eq!(put(&one, "").0, "410");
    assert!(delete(&other).contains(r#"{"released":true}"#));
    assert!(delete(&other).contains(r#"{"released":false}"#));
    assert_eq!(put("1", "").0, "422");
}

#[test]
fn the_lock_of_a_stream_outlives_its_server_until_the_end_of_the_lease() {
    let workspace = Workspace::new();
    let server = Server::start(&workspace);
    let mut stream = Stream::open(&server, "orders", r#"{"ttl":"4s"}"#);
    assert_eq!(stream.next()["event"], "granted");
    drop(server);
    // The client still counts on its lease.
    assert_eq!(workspace.call("run --no-wait orders true").status.code(), Some(75));
    assert_eq!(workspace.call("run --wait 10s orders true").status.code(), Some(0));
}

#[test]
fn a_public_address_is_refused() {
    let workspace = Workspace::new();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7420"] {
        let output = workspace.call(&format!("serve --listen {address}"));
        assert_eq!(output.status.code(), Some(64), "{}", stderr(&output));
        assert!(stderr(&output).contains("--access and --tls-cert"), "{}", stderr(&output));
    }
    let mut command = workspace.polylock();
    command.args(["serve", "--listen", "0.0.0.0:0", "--allow-insecure", "--metrics-listen", "127.0.0.1:0"]);
    let mut server = Server::of(command);
    // A name is as good as an address, then: clients of other machines use it.
    server.url = server.url.replace("0.0.0.0", "127.0.0.1");
    assert!(reply_to("GET", &server, "/v1/locks", "", "").starts_with("HTTP/1.1 200 "));
}

/// Writes an access file with one caller. Its token is `secret`, unless it has this certificate.
fn write_access(workspace: &Workspace, key: &str) {
    // printf secret | sha256sum
    let token = "token_sha256 = \"2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\"";
    let key = if key.is_empty() { token } else { key };
    let text = format!(
        "[[caller]]\nname = \"billing\"\n{key}\nallow = [{{ prefix = \"billing/\", rights = [\"exclusive\"] }}]\n"
    );
    fs::write(workspace.path("access.toml"), text).unwrap();
}

/// Runs `true` under a lock of the service, and returns the exit code and the messages.
fn run_true(server: &Server, workspace: &Workspace, keys: &str, name: &str) -> (Option<i32>, String) {
    let mut command = workspace.polylock_without_store();
    command.args(["run", "-S", &format!("{}{keys}", server.url), "--outage", "3s", name, "true"]);
    let output = command.output().unwrap();
    (output.status.code(), stderr(&output))
}

#[test]
fn a_caller_has_the_rights_of_the_access_file() {
    let workspace = Workspace::new();
    write_access(&workspace, "");
    let server = Server::start_with(&workspace, &["--access", "access.toml"]);
    for (keys, name, code, word) in [
        ("?polylock.token=secret", "billing/1", 0, ""),
        ("?polylock.token=secret", "orders", 77, "billing needs the right exclusive"),
        ("?polylock.token=other", "billing/1", 77, "Authorization: Bearer"),
        ("", "billing/1", 77, "Authorization: Bearer"),
    ] {
        let (found, text) = run_true(&server, &workspace, keys, name);
        assert!(found == Some(code) && text.contains(word), "{keys} {name}: {found:?} {text}");
        assert!(!text.contains("secret"), "{text}");
    }
    // An invalid file changes nothing, and a new token takes the place of the former one.
    fs::write(workspace.path("access.toml"), "[[caller]]\nname = \"c\"\nallow = []\n").unwrap();
    let output = workspace.call("serve --access access.toml");
    assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
    assert!(stderr(&output).contains("caller c: it has neither token_sha256"), "{}", stderr(&output));
    let output = workspace.call("serve --access none.toml");
    assert!(stderr(&output).contains("none.toml"), "{}", stderr(&output));
    let of = |token: &str| run_true(&server, &workspace, &format!("?polylock.token={token}"), "billing/1").0;
    assert_eq!(of("secret"), Some(0));
    // printf other | sha256sum
    write_access(
        &workspace,
        "token_sha256 = \"d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa\"",
    );
    let limit = SystemClock.now() + Duration::from_secs(30);
    while of("other") != Some(0) {
        assert!(SystemClock.now() < limit, "the new token is not accepted");
    }
    assert_eq!(of("secret"), Some(77));
}

/// Creates an authority, and certificates with their keys for a server and a client. Returns the fingerprint of the client's.
fn certify(workspace: &Workspace) -> String {
    let openssl = |arguments: &str| {
        let mut command = Command::new("openssl");
        let output = command.args(arguments.split(' ')).current_dir(workspace.path("")).output().unwrap();
        assert!(output.status.success(), "{arguments}: {}", stderr(&output));
        stdout(&output)
    };
    let new = "req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 2";
    openssl(&format!("{new} -subj /CN=authority -keyout ca.key -out ca.crt"));
    for (name, names) in
        [("server", "DNS:localhost,IP:127.0.0.1"), ("client", "DNS:client"), ("other", "DNS:other")]
    {
        openssl(&format!(
            "{new} -subj /CN={name} -keyout {name}.key -out {name}.crt -CA ca.crt -CAkey ca.key -addext subjectAltName={names} -addext \
             basicConstraints=CA:FALSE"
        ));
    }
    let fingerprint = openssl("x509 -in client.crt -noout -fingerprint -sha256");
    fingerprint.trim().rsplit('=').next().unwrap().to_owned()
}

#[test]
fn connections_are_encrypted_and_a_certificate_is_a_caller() {
    let workspace = Workspace::new();
    let fingerprint = certify(&workspace);
    write_access(&workspace, &format!("certificate_sha256 = \"{fingerprint}\""));
    let options = ["--tls-cert", "server.crt", "--tls-key", "server.key", "--access", "access.toml"];
    let server = Server::start_with(&workspace, &[&options[..], &["--tls-client-ca", "ca.crt"][..]].concat());
    assert!(server.url.starts_with("polylock+https://"), "{}", server.url);
    let pem = |name: &str| format!("polylock.tls_cert={name}.crt&polylock.tls_key={name}.key");
    for (keys, code, word) in [
        (format!("?polylock.tls_ca=ca.crt&{}", pem("client")), 0, ""),
        // The authority has signed it, and the file does not name it.
        (format!("?polylock.tls_ca=ca.crt&{}", pem("other")), 77, "Authorization: Bearer"),
        ("?polylock.tls_ca=ca.crt".to_owned(), 77, "Authorization: Bearer"),
        (format!("?{}", pem("client")), 78, "polylock.tls_ca"),
        (format!("?polylock.tls_ca=server.crt&{}", pem("client")), 78, "polylock.tls_ca"),
    ] {
        let (found, text) = run_true(&server, &workspace, &keys, "billing/1");
        assert!(found == Some(code) && text.contains(word), "{keys}: {found:?} {text}");
    }
    // A client without encryption is no reason to stop.
    let plain = server.url.replace("https", "http");
    let output = workspace.call(&format!("list -S {plain}"));
    assert_ne!(output.status.code(), Some(0));
    for (options, word) in [
        ("--tls-cert server.crt", "--tls-key"),
        ("--tls-cert none.crt --tls-key server.key", "none.crt"),
        ("--tls-cert server.crt --tls-key client.key", "--tls-cert"),
        ("--tls-cert server.crt --tls-key server.key --tls-client-ca ca.crt", "--access"),
    ] {
        let output = workspace.call(&format!("serve {options}"));
        assert!(
            output.status.code() != Some(0) && stderr(&output).contains(word),
            "{options}: {}",
            stderr(&output)
        );
    }
}
