//! `polylock serve`, and the service as a store.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{Workspace, stderr, stdout};

/// A server, and its URL as a store. It is killed when this is dropped.
struct Server {
    process: Child,
    url: String,
}

impl Server {
    fn start(workspace: &Workspace) -> Self {
        let mut command = workspace.polylock();
        command.args(["serve", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { process, url: format!("polylock+{}", line.trim()) }
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
fn a_stream_holds_a_lock_until_it_is_closed() {
    let workspace = Workspace::new();
    let server = Server::start(&workspace);
    let mut first = Stream::open(&server, "orders%2F42", r#"{"label":"first"}"#);
    let granted = first.next();
    assert_eq!(granted["event"], "granted", "{granted}");
    let status = workspace.status("orders/42");
    assert_eq!(status["holders"][0]["fencing_token"], granted["fencing_token"]);
    assert_eq!(status["holders"][0]["label"], "first");
    let mut second = Stream::open(&server, "orders%2F42", "");
    assert_eq!(second.next(), json!({ "event": "queued", "position": 2 }));
    let mut busy = Stream::open(&server, "orders%2F42", r#"{"wait":"0s"}"#);
    assert_eq!(busy.next()["type"], "urn:polylock:busy");
    drop(first);
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
    drop(second);
    assert_eq!(workspace.call("run --wait 5s orders/42 true").status.code(), Some(0));
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
        assert!(stderr(&output).contains("authentication"), "{}", stderr(&output));
    }
}
