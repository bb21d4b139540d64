//! Tests each fault in front of an echo server.

mod http;

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    sync::mpsc::{self, Receiver},
    time::Duration,
};

use super::*;
use crate::clock::now;

/// The duration of a fault that a test can observe.
const MOMENT: Duration = Duration::from_millis(100);

/// Starts an echo server, which also sends the received text to the test; an empty text is the end of a connection.
fn echo() -> (u16, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its number").port();
    let (sender, received) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, sender) = (stream.expect("a connection"), sender.clone());
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                loop {
                    let read = stream.read(&mut buffer).unwrap_or(0);
                    let ended = sender.send(String::from_utf8_lossy(&buffer[..read]).into_owned()).is_err();
                    // There is no reply if the test has ended.
                    if read == 0 || ended || stream.write_all(&buffer[..read]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, received)
}

fn connect(proxy: &Proxy) -> TcpStream {
    let client = TcpStream::connect(proxy.address()).expect("the proxy accepts");
    client.set_read_timeout(Some(TIMEOUT)).expect("a limit");
    client
}

fn send(client: &mut TcpStream, text: &str) {
    client.write_all(text.as_bytes()).expect("sent");
}

fn expect(client: &mut TcpStream, text: &str) {
    let mut buffer = vec![0; text.len()];
    client.read_exact(&mut buffer).expect("received");
    assert_eq!(String::from_utf8_lossy(&buffer), text);
}

fn expect_nothing(client: &mut TcpStream) {
    client.set_read_timeout(Some(MOMENT)).expect("a limit");
    let error = client.read(&mut [0]).expect_err("nothing arrives");
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    client.set_read_timeout(Some(TIMEOUT)).expect("a limit");
}

#[test]
fn passed_bytes_are_counted() {
    let (port, received) = echo();
    let proxy = Proxy::to(port);
    let (mut one, mut other) = (connect(&proxy), connect(&proxy));
    for (client, text) in [(&mut one, "abc"), (&mut other, "defg")] {
        send(client, text);
        expect(client, text);
        assert_eq!(received.recv_timeout(TIMEOUT).as_deref(), Ok(text));
    }
    let counts = proxy.counts();
    let expected = Counts {
        connections: 2,
        open: 2,
        requests: 2,
        to_server: 7,
        to_client: 7,
        resets_before_reply: 0,
        faulted: 0,
    };
    assert_eq!(counts, expected);
    drop(one);
    assert_eq!(received.recv_timeout(TIMEOUT).as_deref(), Ok(""), "the end of the connection passes");
    assert!(clock::within(TIMEOUT, || proxy.counts().open == 1));
}

#[test]
fn a_url_gets_the_address_of_the_proxy() {
    let proxy = Proxy::to(9);
    let address = proxy.address();
    for (of, through) in [
        ("redis://h:1", format!("redis://{address}")),
        ("redis://u:p/@@h/3?a=b", format!("redis://u:p/@@{address}/3?a=b")),
        ("zookeeper://h:1?a=b", format!("zookeeper://{address}?a=b")),
        ("az://c@a?emulator=http://h:1", format!("az://c@a?emulator=http://{address}")),
        ("az://c@a?emulator=http://h:1&a=b", format!("az://c@a?emulator=http://{address}&a=b")),
    ] {
        assert_eq!(proxy.url(of), through);
    }
}

#[test]
fn dropped_bytes_never_arrive_nor_do_later_ones() {
    for way in BOTH {
        let (port, received) = echo();
        let proxy = Proxy::to(port);
        let mut client = connect(&proxy);
        send(&mut client, "a");
        expect(&mut client, "a");
        proxy.set(way, Flow::Drop);
        send(&mut client, "b");
        expect_nothing(&mut client);
        proxy.set(way, Flow::Pass);
        send(&mut client, "c");
        expect_nothing(&mut client);
        drop(client);
        let texts: Vec<String> = std::iter::from_fn(|| received.recv_timeout(MOMENT).ok()).collect();
        // The server receives everything if only replies are dropped; otherwise it does not receive the end of the connection either.
        assert_eq!(texts.concat(), if way == Direction::ToServer { "a" } else { "abc" });
        assert_eq!(texts.last().is_some_and(String::is_empty), way == Direction::ToClient, "{texts:?}");
        let mut fresh = connect(&proxy);
        send(&mut fresh, "d");
        expect(&mut fresh, "d");
    }
}

#[test]
fn held_bytes_arrive_later_even_if_the_sender_has_gone() {
    let (port, received) = echo();
    let proxy = Proxy::to(port);
    let mut client = connect(&proxy);
    proxy.set(Direction::ToServer, Flow::Hold);
    send(&mut client, "late");
    drop(client);
    assert!(received.recv_timeout(MOMENT).is_err(), "held");
    proxy.set(Direction::ToServer, Flow::Pass);
    assert_eq!(received.recv_timeout(TIMEOUT).as_deref(), Ok("late"));
    assert_eq!(received.recv_timeout(TIMEOUT).as_deref(), Ok(""), "the end of the connection");
    assert!(clock::within(TIMEOUT, || proxy.counts().open == 0));
}

#[test]
fn a_stalled_direction_blocks_the_sender() {
    let (port, received) = echo();
    let proxy = Proxy::to(port);
    let mut client = connect(&proxy);
    proxy.set(Direction::ToServer, Flow::Stall);
    client.set_write_timeout(Some(MOMENT)).expect("a limit");
    let (chunk, mut sent) = (vec![b'x'; 1 << 20], 0);
    let full = loop {
        match client.write(&chunk) {
            Ok(written) => sent += written,
            Err(error) => break error,
        }
    };
    assert!(matches!(full.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{full}");
    assert!(received.try_recv().is_err());
    // Reads the replies, so that they do not block the server.
    let mut reader = client.try_clone().expect("a second handle");
    thread::spawn(move || io::copy(&mut reader, &mut io::sink()));
    proxy.set(Direction::ToServer, Flow::Pass);
    let mut arrived = 0;
    while arrived < sent {
        arrived += received.recv_timeout(TIMEOUT).expect("the rest arrives").len();
    }
}

#[test]
fn a_delay_is_at_least_that_long_and_keeps_the_order() {
    let (port, _heard) = echo();
    let proxy = Proxy::to(port);
    let mut client = connect(&proxy);
    proxy.set_both(Flow::Delay(MOMENT));
    let began = now();
    send(&mut client, "a");
    send(&mut client, "b");
    expect(&mut client, "ab");
    let took = now().since(began);
    assert!(took >= 2 * MOMENT, "{took:?}");
}

#[test]
fn connections_are_cut_and_new_ones_work() {
    for (end, error) in [(End::Reset, Some(ErrorKind::ConnectionReset)), (End::Close, None)] {
        let (port, _heard) = echo();
        let proxy = Proxy::to(port);
        let mut client = connect(&proxy);
        send(&mut client, "a");
        expect(&mut client, "a");
        assert_eq!((proxy.cut(end), proxy.counts().open), (1, 0));
        let read = client.read(&mut [0]);
        assert_eq!(read.as_ref().map_err(io::Error::kind), error.map_or(Ok(&0), Err), "{end:?}");
        let mut fresh = connect(&proxy);
        send(&mut fresh, "b");
        expect(&mut fresh, "b");
        assert_eq!(proxy.cut(end), 1);
        assert_eq!(proxy.cut(end), 0, "every connection is cut once");
    }
}

#[test]
fn a_switch_that_another_thread_replaces_is_not_waited_for() {
    let (port, _received) = echo();
    let proxy = Proxy::to(port);
    thread::scope(|scope| {
        let refusing = scope.spawn(|| (0..100).for_each(|_| proxy.refuse(true)));
        while !refusing.is_finished() {
            proxy.refuse(false);
        }
    });
}

#[test]
fn refusing_affects_only_new_connections() {
    let (port, _heard) = echo();
    let proxy = Proxy::to(port);
    let mut client = connect(&proxy);
    send(&mut client, "a");
    expect(&mut client, "a");
    for _ in 0..3 {
        proxy.refuse(true);
        let refused = TcpStream::connect(proxy.address()).expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let taken = TcpListener::bind(proxy.address()).expect_err("the port is reserved");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        send(&mut client, "b");
        expect(&mut client, "b");
        proxy.refuse(false);
        let mut fresh = connect(&proxy);
        send(&mut fresh, "c");
        expect(&mut fresh, "c");
    }
}

#[test]
fn a_connection_is_reset_before_the_reply_and_the_request_has_arrived() {
    let (port, received) = echo();
    let proxy = Proxy::to(port);
    let mut client = connect(&proxy);
    proxy.reset_before_reply_to("doomed");
    send(&mut client, "other");
    expect(&mut client, "other");
    send(&mut client, "a doomed one");
    let cut = client.read(&mut [0]).expect_err("no reply");
    assert_eq!(cut.kind(), ErrorKind::ConnectionReset);
    assert_eq!(received.iter().take(2).collect::<Vec<_>>(), ["other", "a doomed one"]);
    assert_eq!(proxy.counts().resets_before_reply, 1);
    let mut fresh = connect(&proxy);
    send(&mut fresh, "a doomed one");
    expect(&mut fresh, "a doomed one");
}

#[test]
fn existing_and_future_connections_are_switched_separately() {
    let (port, received) = echo();
    let proxy = Proxy::to(port);
    let mut early = connect(&proxy);
    send(&mut early, "a");
    expect(&mut early, "a");
    proxy.set_existing(Direction::ToServer, Flow::Hold);
    send(&mut early, "late");
    expect_nothing(&mut early);
    let mut fresh = connect(&proxy);
    send(&mut fresh, "b");
    expect(&mut fresh, "b");
    proxy.set_existing(Direction::ToClient, Flow::Drop);
    send(&mut fresh, "c");
    expect_nothing(&mut fresh);
    proxy.set(Direction::ToServer, Flow::Pass);
    assert_eq!(received.iter().take(4).collect::<Vec<_>>(), ["a", "b", "c", "late"]);
    expect_nothing(&mut early);
}

#[test]
fn a_single_connection_is_switched_and_cut() {
    let (port, received) = echo();
    let proxy = Proxy::to(port);
    let (mut one, mut two) = (connect(&proxy), connect(&proxy));
    for client in [&mut one, &mut two] {
        send(client, "a");
        expect(client, "a");
    }
    proxy.set_one(2, Direction::ToServer, Flow::Hold);
    proxy.watch_for("b");
    proxy.watch_for_replies("b");
    send(&mut two, "b2");
    assert!(clock::within(TIMEOUT, || proxy.watched() == [2]), "held, and recorded");
    send(&mut one, "c");
    expect(&mut one, "c");
    send(&mut one, "b1");
    expect(&mut one, "b1");
    assert_eq!(proxy.watched(), [2, 1]);
    proxy.set_one(2, Direction::ToServer, Flow::Pass);
    expect(&mut two, "b2");
    assert_eq!(proxy.watched_replies(), [1, 2]);
    assert_eq!(received.iter().take(5).collect::<Vec<_>>(), ["a", "a", "c", "b1", "b2"]);
    proxy.cut_one(1, End::Reset);
    one.read(&mut [0]).expect_err("cut");
    send(&mut two, "d");
    expect(&mut two, "d");
}

#[test]
fn new_connections_are_redirected_to_another_server() {
    let ((before, at_first), (after, then)) = (echo(), echo());
    let proxy = Proxy::to(before);
    let mut early = connect(&proxy);
    send(&mut early, "a");
    expect(&mut early, "a");
    proxy.redirect_to(([127, 0, 0, 1], after).into());
    let mut fresh = connect(&proxy);
    send(&mut fresh, "b");
    expect(&mut fresh, "b");
    send(&mut early, "c");
    expect(&mut early, "c");
    assert_eq!(at_first.iter().take(2).collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!(then.iter().take(1).collect::<Vec<_>>(), ["b"]);
}

#[test]
fn a_push_arrives_before_the_reply() {
    let (port, received) = echo();
    let proxy = Proxy::to(port);
    let mut client = connect(&proxy);
    proxy.fault_next(["b"], RequestFault::PushBeforeReply(b"first ".to_vec()));
    for text in ["a", "b", "c"] {
        send(&mut client, text);
        expect(&mut client, if text == "b" { "first b" } else { text });
    }
    assert_eq!(received.iter().take(3).collect::<Vec<_>>(), ["a", "b", "c"]);
}

#[test]
fn connections_are_reset_if_the_server_is_down() {
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its number");
    let proxy = Proxy::start(closed);
    let mut client = connect(&proxy);
    let reset = client.read(&mut [0]).expect_err("a reset");
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
}
