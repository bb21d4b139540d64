//! `polylock run` with unreachable servers, with the session of a dead holder, and the load of waiters on a server.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use polylock::Locks;
use polylock_integration_tests::{
    cargo,
    clock::{now, pause, until},
    servers::{
        redis::{self, DURABLE},
        zookeeper,
    },
};

/// Starts `polylock` with this store and these arguments.
fn polylock(url: &str, arguments: &[&str]) -> Child {
    let mut command = Command::new(cargo::polylock());
    command.args(["-S", url]).args(arguments).stdin(Stdio::null()).stderr(Stdio::piped());
    command.env("POLYLOCK_CONFIG", "/dev/null").env_remove("POLYLOCK_OWNER").spawn().unwrap()
}

/// Returns the lines of the standard error of `child` up to the first one with `word`.
fn read_stderr_until(child: &mut Child, word: &str) -> String {
    let lines = BufReader::new(child.stderr.as_mut().unwrap()).lines();
    let mut text = String::new();
    for line in lines {
        text += &(line.unwrap() + "\n");
        if text.contains(word) {
            return text;
        }
    }
    panic!("stderr ended without {word:?}: {text}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_starts_while_the_store_is_opened_is_used() {
    let server = redis::start(DURABLE).unwrap();
    server.kill();
    let mut run = polylock(server.url(), &["run", "-w", "60", "x", "true"]);
    let text = read_stderr_until(&mut run, "store unavailable");
    assert!(text.contains("x: store unavailable for ") && text.contains(", giving up in "), "{text}");
    // The library waits for the server, too.
    let locks = tokio::spawn({
        let url = server.url().to_owned();
        async move { Locks::connect(&url).await }
    });
    server.restart();
    assert!(run.wait().unwrap().success());
    locks.await.unwrap().unwrap();
    // With an outage limit of zero, the connection fails at once.
    server.kill();
    let began = now();
    let refused = Locks::builder(server.url()).outage(Duration::ZERO).connect().await;
    assert!(refused.is_err_and(|error| error.is_temporary()));
    assert!(now().since(began) < Duration::from_secs(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_reports_an_outage_and_the_time_left() {
    let server = redis::start(DURABLE).unwrap();
    let locks = Locks::connect(server.url()).await.unwrap();
    let guard = locks.lock("x").acquire().await.unwrap();
    let mut run = polylock(server.url(), &["run", "--outage", "4s", "x", "true"]);
    read_stderr_until(&mut run, "held by ");
    let killed = now();
    server.kill();
    let text = read_stderr_until(&mut run, "store unavailable");
    assert!(text.contains("giving up in ") && text.contains("redis could not claim"), "{text}");
    assert_eq!(run.wait().unwrap().code(), Some(69));
    let ended_after = now().since(killed);
    assert!(
        ended_after >= Duration::from_secs(4) && ended_after < Duration::from_secs(15),
        "{ended_after:?}"
    );
    drop(guard);
}

#[tokio::test(flavor = "multi_thread")]
async fn on_zookeeper_the_ttl_of_a_run_is_the_session_timeout() {
    let server = zookeeper::start(&["maxSessionTimeout=10000"]).unwrap();
    let url = server.url();
    let locks = Locks::connect(url).await.unwrap();
    let held = async || !locks.inspect("x").await.unwrap().holders.is_empty();
    let mut run = polylock(url, &["run", "--ttl", "3s", "x", "sleep", "60"]);
    until("the lock is held", held).await;
    run.kill().unwrap();
    let killed = now();
    run.wait().unwrap();
    locks.lock("x").wait(Duration::from_secs(20)).acquire().await.unwrap().release().await.unwrap();
    let free_after = now().since(killed);
    println!("free after {free_after:?}");
    // The session, up to two ticks of 500 ms, and a busy machine.
    assert!(free_after < Duration::from_secs(6), "{free_after:?}");
    // A session timeout that the servers do not grant is refused.
    let mut refused = polylock(url, &["run", "--ttl", "60s", "x", "true"]);
    assert_eq!(refused.wait().unwrap().code(), Some(64));
    let mut text = String::new();
    refused.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(
        text.contains("a TTL of 1m is out of range: zookeeper accepts ") && text.contains(" to 10s"),
        "{text}"
    );
}

/// Counts the reads of the whole queue by all clients within `time`.
fn reads_of_the_queue(port: u16, time: Duration) -> thread::JoinHandle<usize> {
    let mut monitor = TcpStream::connect(("127.0.0.1", port)).unwrap();
    monitor.write_all(b"MONITOR\r\n").unwrap();
    let end = now() + time;
    let mut lines = BufReader::new(monitor);
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "+OK\r\n");
    thread::spawn(move || {
        let mut count = 0;
        // The keep-alives of the waiters keep this loop running.
        while now() < end {
            line.clear();
            lines.read_line(&mut line).unwrap();
            count += usize::from(line.contains("\"ZRANGE\"") && line.ends_with("\"0\" \"-1\"\r\n"));
        }
        count
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_reads_the_queue_only_if_the_result_is_displayed() {
    let server = redis::start(DURABLE).unwrap();
    let locks = Locks::connect(server.url()).await.unwrap();
    let guard = locks.lock("x").acquire().await.unwrap();
    let status = tempfile::tempdir().unwrap().keep();
    let status = status.join("status").display().to_string();
    let time = Duration::from_secs(5);
    for (arguments, reads) in [
        (&["-q", "run", "x", "true"][..], 0..=0),
        (&["run", "x", "true"], 1..=1),
        (&["-q", "run", "--status-file", &status, "x", "true"], 1..=3),
    ] {
        let counted = reads_of_the_queue(server.port(), time);
        let mut waiters: Vec<Child> = (0..3).map(|_| polylock(server.url(), arguments)).collect();
        pause(time).await;
        let count = counted.join().unwrap();
        println!("{arguments:?}: {count} reads of the queue by three waiters in {time:?}");
        for waiter in &mut waiters {
            assert_eq!(waiter.try_wait().unwrap(), None, "the run waits");
            waiter.kill().unwrap();
            waiter.wait().unwrap();
        }
        assert!((reads.start() * 3..=reads.end() * 3).contains(&count), "{arguments:?}: {count}");
        until("the waiters have left the queue", async || {
            locks.inspect("x").await.unwrap().waiters.is_empty()
        })
        .await;
    }
    drop(guard);
}
