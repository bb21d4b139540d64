//! What becomes of single requests, in front of a server that keeps its connections open as HTTP/1.1 does.

use super::*;

/// A server that answers each request with its first line, and tells the test the whole of it.
fn peer() -> (u16, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its number").port();
    let (tell, heard) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, tell) = (stream.expect("a connection"), tell.clone());
            thread::spawn(move || {
                while let Some(request) = whole(&mut stream) {
                    let line = request.lines().next().unwrap_or_default();
                    let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{line}", line.len());
                    if tell.send(request).is_err() || stream.write_all(reply.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, heard)
}

/// The next message, if it comes.
fn whole(stream: &mut TcpStream) -> Option<String> {
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

fn is_answered(client: &mut TcpStream, line: &str, header: &str) {
    says(client, &request(line, header));
    let reply = whole(client).expect("a reply");
    assert!(reply.ends_with(&format!("\r\n\r\n{line} HTTP/1.1")), "{reply}");
}

fn is_reset(client: &mut TcpStream) {
    let reset = client.read(&mut [0]).expect_err("no reply");
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
}

/// The first lines that the server has heard and hears soon.
fn lines(heard: &Receiver<String>) -> Vec<String> {
    let requests = std::iter::from_fn(|| heard.recv_timeout(MOMENT).ok());
    requests.map(|request| request.split(" HTTP").next().unwrap_or_default().to_owned()).collect()
}

const LEASE: &str = "PUT /it?comp=lease";
const ACQUIRE: [&str; 2] = ["comp=lease", "action: acquire"];

/// A connection on which three requests have passed that lack something each, and the fourth one was sent.
fn picked(proxy: &Proxy, fate: Fate) -> TcpStream {
    let mut client = through(proxy);
    proxy.next(ACQUIRE, fate);
    is_answered(&mut client, LEASE, "action: renew");
    is_answered(&mut client, "PUT /it?comp=metadata", "action: acquire");
    is_answered(&mut client, "GET /it", "a: b");
    assert_eq!(proxy.counts().fated, 0);
    says(&mut client, &request(LEASE, "action: acquire"));
    client
}

/// The server has heard these and no other, and a new connection is well.
fn goes_on(proxy: &Proxy, heard: &Receiver<String>, arrived: bool) {
    let mut expected = vec![LEASE, "PUT /it?comp=metadata", "GET /it"];
    expected.extend(arrived.then_some(LEASE));
    assert_eq!(lines(heard), expected);
    is_answered(&mut through(proxy), LEASE, "action: acquire");
    assert_eq!(proxy.counts().fated, 1, "only the first one");
    assert_eq!(proxy.counts().requests, 5);
}

#[test]
fn a_reply_is_cut_on_a_connection_that_was_used_before() {
    let (port, heard) = peer();
    let proxy = Proxy::to_http(port);
    is_reset(&mut picked(&proxy, Fate::CutReply));
    assert_eq!(proxy.counts().cut_replies, 1);
    goes_on(&proxy, &heard, true);
}

#[test]
fn a_reply_is_swallowed_and_so_is_what_follows_it() {
    let (port, heard) = peer();
    let proxy = Proxy::to_http(port);
    let mut client = picked(&proxy, Fate::SwallowReply);
    hears_nothing(&mut client);
    goes_on(&proxy, &heard, true);
    says(&mut client, &request("GET /more", "a: b"));
    hears_nothing(&mut client);
    assert_eq!(lines(&heard), [LEASE, "GET /more"]);
}

#[test]
fn a_request_is_cut_and_never_arrives() {
    let (port, heard) = peer();
    let proxy = Proxy::to_http(port);
    is_reset(&mut picked(&proxy, Fate::Cut));
    goes_on(&proxy, &heard, false);
}

#[test]
fn a_request_is_swallowed_and_nothing_comes_back() {
    let (port, heard) = peer();
    let proxy = Proxy::to_http(port);
    let mut client = picked(&proxy, Fate::Swallow);
    hears_nothing(&mut client);
    goes_on(&proxy, &heard, false);
    says(&mut client, &request("GET /more", "a: b"));
    hears_nothing(&mut client);
    assert_eq!(lines(&heard), [LEASE]);
}

#[test]
fn a_request_is_answered_by_the_proxy_and_the_connection_goes_on() {
    let (port, heard) = peer();
    let proxy = Proxy::to_http(port);
    let mut client = picked(&proxy, Fate::Answer(busy()));
    assert_eq!(whole(&mut client).map(String::into_bytes), Some(busy()));
    goes_on(&proxy, &heard, false);
    is_answered(&mut client, LEASE, "action: acquire");
}

fn busy() -> Vec<u8> {
    b"HTTP/1.1 503 Server Busy\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nbusy".to_vec()
}

#[test]
fn all_are_answered_by_the_proxy_until_they_are_spared() {
    let (port, heard) = peer();
    let proxy = Proxy::to_http(port);
    let (mut one, mut two) = (through(&proxy), through(&proxy));
    is_answered(&mut one, "GET /before", "a: b");
    proxy.every([""; 0], Fate::Answer(busy()));
    for client in [&mut one, &mut two] {
        for _ in 0..3 {
            says(client, &request("GET /it", "a: b"));
            assert_eq!(whole(client).map(String::into_bytes), Some(busy()));
        }
    }
    // Sent at once, they have a reply each.
    says(&mut one, &request("GET /it", "a: b").repeat(2));
    for _ in 0..2 {
        assert_eq!(whole(&mut one).map(String::into_bytes), Some(busy()));
    }
    assert_eq!((proxy.counts().fated, proxy.counts().requests), (8, 9));
    proxy.spare();
    for client in [&mut one, &mut two] {
        is_answered(client, "GET /after", "a: b");
    }
    assert_eq!(lines(&heard), ["GET /before", "GET /after", "GET /after"]);
}

#[test]
fn while_all_are_swallowed_it_accepts_and_never_answers() {
    let (port, heard) = peer();
    let proxy = Proxy::to_http(port);
    let mut early = through(&proxy);
    is_answered(&mut early, "GET /before", "a: b");
    proxy.every([""; 0], Fate::Swallow);
    let mut late = through(&proxy);
    for client in [&mut early, &mut late] {
        says(client, &request("GET /it", "a: b"));
        hears_nothing(client);
    }
    proxy.spare();
    hears_nothing(&mut late);
    is_answered(&mut through(&proxy), "GET /after", "a: b");
    assert_eq!(lines(&heard), ["GET /before", "GET /after"]);
}

#[test]
fn a_request_in_pieces_is_one() {
    let (port, heard) = peer();
    let proxy = Proxy::to_http(port);
    let mut client = through(&proxy);
    proxy.next(["seven"], Fate::CutReply);
    is_answered(&mut client, "GET /it", "a: b");
    assert_eq!(lines(&heard), ["GET /it"]);
    let whole = request("PUT /it", "content-length: 7") + "a seven";
    for piece in [&whole[..10], &whole[10..40], &whole[40..whole.len() - 2]] {
        says(&mut client, piece);
        hears_nothing(&mut client);
    }
    assert_eq!((heard.try_recv().is_err(), proxy.counts().requests), (true, 1), "it is not whole");
    says(&mut client, &whole[whole.len() - 2..]);
    is_reset(&mut client);
    assert_eq!(proxy.counts().requests, 2);
}

#[test]
fn half_a_request_passes_when_no_more_can_come() {
    let (port, heard) = echo();
    let proxy = Proxy::to_http(port);
    let mut client = through(&proxy);
    says(&mut client, "GET /it HTT");
    client.shutdown(std::net::Shutdown::Write).expect("half closed");
    hears(&mut client, "GET /it HTT");
    assert_eq!(heard.iter().take(2).collect::<Vec<_>>(), ["GET /it HTT", ""]);
}
