//! Each fault is seen working in front of a server that sends back what it hears.

mod http;

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    sync::mpsc::{self, Receiver},
};

use super::*;
use crate::clock::now;

/// What a fault must last to be seen.
const MOMENT: Duration = Duration::from_millis(100);

/// A server that sends back what it hears, and tells it to the test; an empty text is the end of a connection.
fn echo() -> (u16, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its number").port();
    let (tell, heard) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, tell) = (stream.expect("a connection"), tell.clone());
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                loop {
                    let read = stream.read(&mut buffer).unwrap_or(0);
                    let over = tell.send(String::from_utf8_lossy(&buffer[..read]).into_owned()).is_err();
                    // Who does not listen any more gets no answer.
                    if read == 0 || over || stream.write_all(&buffer[..read]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, heard)
}

fn through(proxy: &Proxy) -> TcpStream {
    let client = TcpStream::connect(proxy.address()).expect("it accepts");
    client.set_read_timeout(Some(PATIENCE)).expect("a limit");
    client
}

fn says(client: &mut TcpStream, text: &str) {
    client.write_all(text.as_bytes()).expect("it is sent");
}

fn hears(client: &mut TcpStream, text: &str) {
    let mut buffer = vec![0; text.len()];
    client.read_exact(&mut buffer).expect("it comes");
    assert_eq!(String::from_utf8_lossy(&buffer), text);
}

fn hears_nothing(client: &mut TcpStream) {
    client.set_read_timeout(Some(MOMENT)).expect("a limit");
    let silent = client.read(&mut [0]).expect_err("nothing comes");
    assert!(matches!(silent.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{silent}");
    client.set_read_timeout(Some(PATIENCE)).expect("a limit");
}

#[test]
fn what_passes_is_counted() {
    let (port, heard) = echo();
    let proxy = Proxy::to(port);
    let (mut one, mut other) = (through(&proxy), through(&proxy));
    for (client, text) in [(&mut one, "abc"), (&mut other, "defg")] {
        says(client, text);
        hears(client, text);
        assert_eq!(heard.recv_timeout(PATIENCE).as_deref(), Ok(text));
    }
    let counts = proxy.counts();
    let expected =
        Counts { connections: 2, open: 2, requests: 2, to_server: 7, to_client: 7, cut_replies: 0, fated: 0 };
    assert_eq!(counts, expected);
    drop(one);
    assert_eq!(heard.recv_timeout(PATIENCE).as_deref(), Ok(""), "the end passes, too");
    assert!(clock::within(PATIENCE, || proxy.counts().open == 1));
}

#[test]
fn a_url_leads_through_it() {
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
fn what_is_swallowed_never_comes_nor_what_follows_it() {
    for way in BOTH {
        let (port, heard) = echo();
        let proxy = Proxy::to(port);
        let mut client = through(&proxy);
        says(&mut client, "a");
        hears(&mut client, "a");
        proxy.set(way, Flow::Swallow);
        says(&mut client, "b");
        hears_nothing(&mut client);
        proxy.set(way, Flow::Pass);
        says(&mut client, "c");
        hears_nothing(&mut client);
        drop(client);
        let told: Vec<String> = std::iter::from_fn(|| heard.recv_timeout(MOMENT).ok()).collect();
        // The server hears all if only the answers are swallowed; else it does not even hear of the end.
        assert_eq!(told.concat(), if way == Way::ToServer { "a" } else { "abc" });
        assert_eq!(told.last().is_some_and(String::is_empty), way == Way::ToClient, "{told:?}");
        let mut fresh = through(&proxy);
        says(&mut fresh, "d");
        hears(&mut fresh, "d");
    }
}

#[test]
fn what_is_held_back_comes_later_though_its_sender_has_gone() {
    let (port, heard) = echo();
    let proxy = Proxy::to(port);
    let mut client = through(&proxy);
    proxy.set(Way::ToServer, Flow::Hold);
    says(&mut client, "late");
    drop(client);
    assert!(heard.recv_timeout(MOMENT).is_err(), "held back");
    proxy.set(Way::ToServer, Flow::Pass);
    assert_eq!(heard.recv_timeout(PATIENCE).as_deref(), Ok("late"));
    assert_eq!(heard.recv_timeout(PATIENCE).as_deref(), Ok(""), "and then the end");
    assert!(clock::within(PATIENCE, || proxy.counts().open == 0));
}

#[test]
fn what_is_not_read_makes_the_sender_wait() {
    let (port, heard) = echo();
    let proxy = Proxy::to(port);
    let mut client = through(&proxy);
    proxy.set(Way::ToServer, Flow::Stall);
    client.set_write_timeout(Some(MOMENT)).expect("a limit");
    let (chunk, mut sent) = (vec![b'x'; 1 << 20], 0);
    let full = loop {
        match client.write(&chunk) {
            Ok(written) => sent += written,
            Err(error) => break error,
        }
    };
    assert!(matches!(full.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{full}");
    assert!(heard.try_recv().is_err());
    // So that the answers have somewhere to go.
    let mut reader = client.try_clone().expect("a second handle");
    thread::spawn(move || io::copy(&mut reader, &mut io::sink()));
    proxy.set(Way::ToServer, Flow::Pass);
    let mut came = 0;
    while came < sent {
        came += heard.recv_timeout(PATIENCE).expect("the rest comes").len();
    }
}

#[test]
fn a_delay_is_at_least_that_long_and_keeps_the_order() {
    let (port, _heard) = echo();
    let proxy = Proxy::to(port);
    let mut client = through(&proxy);
    proxy.set_both(Flow::Delay(MOMENT));
    let began = now();
    says(&mut client, "a");
    says(&mut client, "b");
    hears(&mut client, "ab");
    let took = now().since(began);
    assert!(took >= 2 * MOMENT, "{took:?}");
}

#[test]
fn connections_are_cut_and_new_ones_are_well() {
    for (how, error) in [(End::Reset, Some(ErrorKind::ConnectionReset)), (End::Close, None)] {
        let (port, _heard) = echo();
        let proxy = Proxy::to(port);
        let mut client = through(&proxy);
        says(&mut client, "a");
        hears(&mut client, "a");
        assert_eq!((proxy.cut(how), proxy.counts().open), (1, 0));
        let end = client.read(&mut [0]);
        assert_eq!(end.as_ref().map_err(io::Error::kind), error.map_or(Ok(&0), Err), "{how:?}");
        let mut fresh = through(&proxy);
        says(&mut fresh, "b");
        hears(&mut fresh, "b");
        assert_eq!(proxy.cut(how), 1);
        assert_eq!(proxy.cut(how), 0, "each is cut once");
    }
}

#[test]
fn while_it_refuses_nobody_gets_through_but_who_is_through() {
    let (port, _heard) = echo();
    let proxy = Proxy::to(port);
    let mut client = through(&proxy);
    says(&mut client, "a");
    hears(&mut client, "a");
    for _ in 0..3 {
        proxy.refuse(true);
        let refused = TcpStream::connect(proxy.address()).expect_err("nobody listens");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let taken = TcpListener::bind(proxy.address()).expect_err("the port is kept");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        says(&mut client, "b");
        hears(&mut client, "b");
        proxy.refuse(false);
        let mut fresh = through(&proxy);
        says(&mut fresh, "c");
        hears(&mut fresh, "c");
    }
}

#[test]
fn a_reply_is_cut_and_its_request_has_arrived() {
    let (port, heard) = echo();
    let proxy = Proxy::to(port);
    let mut client = through(&proxy);
    proxy.cut_reply_to("doomed");
    says(&mut client, "other");
    hears(&mut client, "other");
    says(&mut client, "a doomed one");
    let cut = client.read(&mut [0]).expect_err("no reply");
    assert_eq!(cut.kind(), ErrorKind::ConnectionReset);
    assert_eq!(heard.iter().take(2).collect::<Vec<_>>(), ["other", "a doomed one"]);
    assert_eq!(proxy.counts().cut_replies, 1);
    let mut fresh = through(&proxy);
    says(&mut fresh, "a doomed one");
    hears(&mut fresh, "a doomed one");
}

#[test]
fn connections_of_before_and_those_to_come_are_switched_apart() {
    let (port, heard) = echo();
    let proxy = Proxy::to(port);
    let mut early = through(&proxy);
    says(&mut early, "a");
    hears(&mut early, "a");
    proxy.set_earlier(Way::ToServer, Flow::Hold);
    says(&mut early, "late");
    hears_nothing(&mut early);
    let mut fresh = through(&proxy);
    says(&mut fresh, "b");
    hears(&mut fresh, "b");
    proxy.set_earlier(Way::ToClient, Flow::Swallow);
    says(&mut fresh, "c");
    hears_nothing(&mut fresh);
    proxy.set(Way::ToServer, Flow::Pass);
    assert_eq!(heard.iter().take(4).collect::<Vec<_>>(), ["a", "b", "c", "late"]);
    hears_nothing(&mut early);
}

#[test]
fn behind_a_server_that_is_away_connections_are_reset() {
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its number");
    let proxy = Proxy::start(closed);
    let mut client = through(&proxy);
    let reset = client.read(&mut [0]).expect_err("a reset");
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
}
