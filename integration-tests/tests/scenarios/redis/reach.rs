//! Connections to servers, and addresses without a usable server.

use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
    time::Duration,
};

use polylock::{Fault, Locks};
use polylock_integration_tests::{
    clock::now,
    proxy::{End, Flow, Proxy},
    servers::{self, redis, redlock::Dead, valkey},
    stores::wait_for_waiters,
};

use super::{SLACK, refusal, use_all_operations};

#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket_is_supported() {
    let server = redis::start(&["unixsocket redis.sock", "unixsocketperm 777"]).unwrap();
    let socket = server.directory().join("data/redis.sock");
    for scheme in ["unix", "redis+unix"] {
        use_all_operations(&format!("{scheme}://{}?db=3", socket.display())).await.unwrap();
    }
    let plain = Locks::connect(&format!("{}/3", server.url())).await.unwrap();
    let there = Locks::connect(&format!("unix://{}?db=3", socket.display())).await.unwrap();
    let guard = there.lock("a").acquire().await.unwrap();
    assert!(plain.lock("a").try_acquire().await.unwrap().is_none(), "the same locks");
    guard.release().await.unwrap();
    let (fault, text) = refusal(&format!("unix://{}", socket.with_extension("none").display())).await;
    assert!(fault == Some(Fault::Temporary), "{fault:?}: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schemes_of_valkey_are_supported() {
    let server = valkey::start(&[]).unwrap();
    use_all_operations(&server.url().replace("redis://", "valkey://")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_authority_must_be_configured() {
    let server = redis::start_tls(&[]).unwrap();
    let other = redis::start_tls(&[]).unwrap();
    let of = |server: &servers::PrivateServer, url: &str| {
        format!("{url}?polylock.tls_ca={}", server.directory().join("ca.crt").display())
    };
    use_all_operations(&of(&server, server.url())).await.unwrap();
    use_all_operations(&of(&server, &server.url().replace("127.0.0.1", "localhost"))).await.unwrap();

    // Signed by an unknown authority, or by another one.
    let urls = [server.url().to_owned(), of(&other, server.url())];
    for url in urls {
        let (fault, text) = refusal(&url).await;
        assert!(fault == Some(Fault::Permanent) && text.contains("polylock.tls_ca"), "{fault:?}: {text}");
    }
    // The wrong kind of connection, which neither server reports.
    let (fault, text) = refusal(&server.url().replace("rediss:", "redis:")).await;
    assert!(fault == Some(Fault::Temporary) && text.contains("expects TLS (write rediss://"), "{text}");
    let unencrypted = redis::start(&[]).unwrap();
    let (fault, text) = refusal(&unencrypted.url().replace("redis:", "rediss:")).await;
    assert!(fault == Some(Fault::Temporary) && text.contains("no TLS: write redis://"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_server_is_refused() {
    let port = servers::postgres().unwrap().url().rsplit(':').next().unwrap();
    let port = port.split('/').next().unwrap();
    for (scheme, word) in [("redis", "belongs to another kind of server"), ("rediss", "has TLS")] {
        let (fault, text) = refusal(&format!("{scheme}://127.0.0.1:{port}")).await;
        assert!(fault.is_some() && text.contains(word), "{fault:?}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_port_is_a_temporary_error() {
    let dead = Dead::new();
    let began = now();
    let (fault, text) = refusal(&dead.url()).await;
    let took = now().since(began);
    assert!(fault == Some(Fault::Temporary) && text.contains("can't be reached"), "{text}");
    assert!(took < SLACK, "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_never_replies_is_a_temporary_error() {
    let server = redis::start(&[]).unwrap();
    let proxy = Proxy::to(server.port());
    let url = proxy.url(server.url());
    let locks = Locks::connect(&url).await.unwrap();
    for flow in [Flow::Hold, Flow::Stall, Flow::Drop] {
        proxy.set_both(flow);
        for (more, limit) in [("", 1000), ("?polylock.connect_timeout=200ms", 200)] {
            let began = now();
            let (fault, text) = refusal(&format!("{url}{more}")).await;
            let took = now().since(began);
            assert!(fault == Some(Fault::Temporary) && text.contains("no reply within"), "{text}");
            let limit = Duration::from_millis(limit);
            assert!(took >= limit && took < limit + SLACK, "{flow:?}, {limit:?}: {took:?}");
        }
        // A client that was connected before: a command, and then a new connection.
        let began = now();
        let error = locks.lock("a").try_acquire().await.unwrap_err();
        let took = now().since(began);
        assert!(error.is_temporary(), "{error:?}");
        assert!(took < Duration::from_millis(1500) + SLACK, "{flow:?}: {took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_high_latency_is_tolerated() {
    let server = redis::start(&[]).unwrap();
    let far = async |delay: Duration, more: &str| {
        let proxy = Proxy::to(server.port());
        proxy.set_both(Flow::Delay(delay));
        let url = format!("{}?polylock.namespace=far{}{more}", proxy.url(server.url()), delay.as_millis());
        let (here, there) = tokio::join!(Locks::connect(&url), Locks::connect(&url));
        let (here, there) = (here.unwrap(), there.unwrap());
        let guard = here.lock("far").acquire().await.unwrap();
        let waiting = tokio::spawn(there.lock("far").acquire());
        wait_for_waiters(&here, "far", 1).await;
        guard.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
    };
    tokio::join!(
        // This round trip is within the default timeouts ...
        far(Duration::from_millis(50), ""),
        // ... and this one requires longer timeouts.
        far(Duration::from_millis(300), "&polylock.connect_timeout=10s&polylock.operation_timeout=3s"),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn other_protocols_are_refused() {
    for answer in
        ["HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "\0\u{1}\u{2}\u{3}\n", "+OK\r\n", "$-7\r\n"]
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://u:canary@{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut stream = stream;
                let mut buffer = [0; 4096];
                while stream.read(&mut buffer).is_ok_and(|read| read > 0)
                    && stream.write_all(answer.as_bytes()).is_ok()
                {}
            }
        });
        let began = now();
        let (fault, text) = refusal(&url).await;
        let took = now().since(began);
        let known = ["speaks another protocol", "no reply within"].iter().any(|part| text.contains(part));
        assert!(fault == Some(Fault::Temporary) && known && !text.contains("canary"), "{answer:?}: {text}");
        assert!(took < Duration::from_secs(1) + SLACK, "{took:?}");
    }
}

/// Separate attempts would take twenty times as long.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_callers_share_one_connection_attempt() {
    let server = redis::start(&[]).unwrap();
    let proxy = Proxy::to(server.port());
    let locks =
        Locks::connect(&format!("{}?polylock.connect_timeout=300ms", proxy.url(server.url()))).await.unwrap();
    proxy.set_both(Flow::Drop);
    proxy.cut(End::Reset);
    let began = now();
    let tries: Vec<_> = (0..20)
        .map(|name| tokio::spawn(locks.lock(name.to_string()).ttl(Duration::from_secs(10)).try_acquire()))
        .collect();
    for one in tries {
        let error = one.await.unwrap().unwrap_err();
        assert!(error.is_temporary(), "{error:?}");
    }
    let took = now().since(began);
    println!("twenty without a connection: {took:.1?}");
    assert!(took < Duration::from_millis(900) + SLACK, "{took:?}");
}
