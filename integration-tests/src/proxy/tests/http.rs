//! Tests the faults of single requests in front of a server that keeps its connections open, as HTTP/1.1 does.

use super::*;

/// Starts a server that replies to each request with its first line, and sends the complete request to the test.
fn peer() -> (u16, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its number").port();
    let (sender, received) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, sender) = (stream.expect("a connection"), sender.clone());
            thread::spawn(move || {
                while let Some(request) = read_message(&mut stream) {
                    let line = request.lines().next().unwrap_or_default();
                    let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{line}", line.len());
                    if sender.send(request).is_err() || stream.write_all(reply.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, received)
}

/// Reads the next message; `None` at the end of the connection.
fn read_message(stream: &mut TcpStream) -> Option<String> {
    let mut message = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&message).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .split("Content-Length: ")
                .nth(1)
                .map_or(0, |rest| rest.lines().next().unwrap_or_default().parse().expect("a length"));
            if body.len() == length {
                return Some(text);
            }
        }
        let mut byte = [0];
        (stream.read(&mut byte).ok()? == 1).then(|| message.extend(byte))?;
    }
}

fn request(line: &str, header: &str) -> String {
    format!("{line} HTTP/1.1\r\nHost: it\r\n{header}\r\n\r\n")
}

fn expect_reply(client: &mut TcpStream, line: &str, header: &str) {
    send(client, &request(line, header));
    let reply = read_message(client).expect("a reply");
    assert!(reply.ends_with(&format!("\r\n\r\n{line} HTTP/1.1")), "{reply}");
}

fn expect_reset(client: &mut TcpStream) {
    let reset = client.read(&mut [0]).expect_err("no reply");
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
}

/// Returns the first lines of the requests that the server has received, or receives within a moment.
fn first_lines(received: &Receiver<String>) -> Vec<String> {
    let requests = std::iter::from_fn(|| received.recv_timeout(MOMENT).ok());
    requests.map(|request| request.split(" HTTP").next().unwrap_or_default().to_owned()).collect()
}

const LEASE: &str = "PUT /it?comp=lease";
const ACQUIRE: [&str; 2] = ["comp=lease", "action: acquire"];

/// Returns a connection on which three requests have passed that do not match, and a fourth one that matches was sent.
fn faulted_request(proxy: &Proxy, fault: RequestFault) -> TcpStream {
    let mut client = connect(proxy);
    proxy.fault_next(ACQUIRE, fault);
    expect_reply(&mut client, LEASE, "action: renew");
    expect_reply(&mut client, "PUT /it?comp=metadata", "action: acquire");
    expect_reply(&mut client, "GET /it", "a: b");
    assert_eq!(proxy.counts().faulted, 0);
    send(&mut client, &request(LEASE, "action: acquire"));
    client
}

/// Checks the requests that the server has received, and that a new connection works.
fn assert_arrived(proxy: &Proxy, received: &Receiver<String>, arrived: bool) {
    let mut expected = vec![LEASE, "PUT /it?comp=metadata", "GET /it"];
    expected.extend(arrived.then_some(LEASE));
    assert_eq!(first_lines(received), expected);
    expect_reply(&mut connect(proxy), LEASE, "action: acquire");
    assert_eq!(proxy.counts().faulted, 1, "expected one faulted request");
    assert_eq!(proxy.counts().requests, 5);
}

#[test]
fn a_used_connection_is_reset_before_the_reply() {
    let (port, received) = peer();
    let proxy = Proxy::to_http(port);
    expect_reset(&mut faulted_request(&proxy, RequestFault::ResetBeforeReply));
    assert_eq!(proxy.counts().resets_before_reply, 1);
    assert_arrived(&proxy, &received, true);
}

#[test]
fn a_dropped_reply_is_followed_by_no_other_bytes() {
    let (port, received) = peer();
    let proxy = Proxy::to_http(port);
    let mut client = faulted_request(&proxy, RequestFault::DropReply);
    expect_nothing(&mut client);
    assert_arrived(&proxy, &received, true);
    send(&mut client, &request("GET /more", "a: b"));
    expect_nothing(&mut client);
    assert_eq!(first_lines(&received), [LEASE, "GET /more"]);
}

#[test]
fn a_request_is_held_until_after_its_client_was_closed() {
    let (port, received) = peer();
    let proxy = Proxy::to_http(port);
    let mut client = connect(&proxy);
    expect_reply(&mut client, "GET /it", "a: b");
    proxy.set_existing(Direction::ToServer, Flow::Hold);
    proxy.fault_next(ACQUIRE, RequestFault::CloseClient);
    send(&mut client, &request(LEASE, "action: acquire"));
    assert_eq!(client.read(&mut [0]).expect("an orderly end"), 0);
    drop(client);
    assert_eq!(first_lines(&received), ["GET /it"]);
    proxy.set(Direction::ToServer, Flow::Pass);
    assert_eq!(first_lines(&received), [LEASE]);
}

#[test]
fn a_connection_is_reset_before_the_request_arrives() {
    let (port, received) = peer();
    let proxy = Proxy::to_http(port);
    expect_reset(&mut faulted_request(&proxy, RequestFault::Reset));
    assert_arrived(&proxy, &received, false);
}

#[test]
fn a_dropped_request_gets_no_reply() {
    let (port, received) = peer();
    let proxy = Proxy::to_http(port);
    let mut client = faulted_request(&proxy, RequestFault::Drop);
    expect_nothing(&mut client);
    assert_arrived(&proxy, &received, false);
    send(&mut client, &request("GET /more", "a: b"));
    expect_nothing(&mut client);
    assert_eq!(first_lines(&received), [LEASE]);
}

#[test]
fn the_proxy_replies_to_a_request_and_the_connection_stays_open() {
    let (port, received) = peer();
    let proxy = Proxy::to_http(port);
    let mut client = faulted_request(&proxy, RequestFault::Reply(busy()));
    assert_eq!(read_message(&mut client).map(String::into_bytes), Some(busy()));
    assert_arrived(&proxy, &received, false);
    expect_reply(&mut client, LEASE, "action: acquire");
}

fn busy() -> Vec<u8> {
    b"HTTP/1.1 503 Server Busy\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nbusy".to_vec()
}

#[test]
fn the_proxy_replies_to_all_requests_until_the_fault_is_cleared() {
    let (port, received) = peer();
    let proxy = Proxy::to_http(port);
    let (mut one, mut two) = (connect(&proxy), connect(&proxy));
    expect_reply(&mut one, "GET /before", "a: b");
    proxy.fault_every([""; 0], RequestFault::Reply(busy()));
    for client in [&mut one, &mut two] {
        for _ in 0..3 {
            send(client, &request("GET /it", "a: b"));
            assert_eq!(read_message(client).map(String::into_bytes), Some(busy()));
        }
    }
    // Requests that are sent together get one reply each.
    send(&mut one, &request("GET /it", "a: b").repeat(2));
    for _ in 0..2 {
        assert_eq!(read_message(&mut one).map(String::into_bytes), Some(busy()));
    }
    assert_eq!((proxy.counts().faulted, proxy.counts().requests), (8, 9));
    proxy.clear_faults();
    for client in [&mut one, &mut two] {
        expect_reply(client, "GET /after", "a: b");
    }
    assert_eq!(first_lines(&received), ["GET /before", "GET /after", "GET /after"]);
}

#[test]
fn the_proxy_accepts_and_never_replies_while_all_requests_are_dropped() {
    let (port, received) = peer();
    let proxy = Proxy::to_http(port);
    let mut early = connect(&proxy);
    expect_reply(&mut early, "GET /before", "a: b");
    proxy.fault_every([""; 0], RequestFault::Drop);
    let mut late = connect(&proxy);
    for client in [&mut early, &mut late] {
        send(client, &request("GET /it", "a: b"));
        expect_nothing(client);
    }
    proxy.clear_faults();
    expect_nothing(&mut late);
    expect_reply(&mut connect(&proxy), "GET /after", "a: b");
    assert_eq!(first_lines(&received), ["GET /before", "GET /after"]);
}

#[test]
fn a_request_in_pieces_is_counted_once() {
    let (port, received) = peer();
    let proxy = Proxy::to_http(port);
    let mut client = connect(&proxy);
    proxy.fault_next(["seven"], RequestFault::ResetBeforeReply);
    expect_reply(&mut client, "GET /it", "a: b");
    assert_eq!(first_lines(&received), ["GET /it"]);
    let message = request("PUT /it", "content-length: 7") + "a seven";
    for piece in [&message[..10], &message[10..40], &message[40..message.len() - 2]] {
        send(&mut client, piece);
        expect_nothing(&mut client);
    }
    assert_eq!((received.try_recv().is_err(), proxy.counts().requests), (true, 1), "incomplete");
    send(&mut client, &message[message.len() - 2..]);
    expect_reset(&mut client);
    assert_eq!(proxy.counts().requests, 2);
}

#[test]
fn half_a_request_passes_when_the_client_has_ended() {
    let (port, received) = echo();
    let proxy = Proxy::to_http(port);
    let mut client = connect(&proxy);
    send(&mut client, "GET /it HTT");
    client.shutdown(std::net::Shutdown::Write).expect("half closed");
    expect(&mut client, "GET /it HTT");
    assert_eq!(received.iter().take(2).collect::<Vec<_>>(), ["GET /it HTT", ""]);
}
