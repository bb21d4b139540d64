//! Runs the examples as a reader of the documentation would.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, ChildStdout, Command, Output, Stdio},
};

/// Returns the executable of an example, which cargo builds before the tests.
fn example(name: &str) -> Command {
    let tests = std::env::current_exe().unwrap();
    let built: PathBuf = tests.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(
        built.exists(),
        "{} is not built: run `cargo build --all-features --examples` before a single test",
        built.display()
    );
    Command::new(built)
}

fn stdout(output: Output) -> String {
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// A running example. It ends when this is dropped.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Reads lines until one contains `part`. Returns that line.
    fn reads(&mut self, part: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "it ended before {part:?}");
            if line.contains(part) {
                return line.trim_end().to_owned();
            }
        }
    }

    /// Sends the signal of Ctrl-C.
    fn interrupt(&self) {
        self.signal("INT");
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn job_worker_does_each_job_once() {
    let printed = stdout(example("job_worker").output().unwrap());
    assert!(printed.contains("12 of 12 jobs done"), "{printed}");
}

#[cfg(feature = "sqlite")]
#[test]
fn blocking_imports_each_file_and_its_last_act_releases_the_lock() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("import.db").display());
    for _ in 0..3 {
        let printed = stdout(example("blocking").arg(&url).output().unwrap());
        assert!(printed.contains("12 of 12 files imported"), "{printed}");
        // The lease of the last guard, which the program has dropped, lasts 30 s.
        let locks = polylock::blocking::Locks::connect(&url).unwrap();
        assert!(locks.lock("import/summary").try_acquire().unwrap().is_some());
    }
}

#[cfg(feature = "sqlite")]
#[test]
fn leader_is_followed_by_the_next_process() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("leader.db").display());
    let candidate = || {
        let mut command = example("leader");
        command.arg(&url);
        Running::start(command)
    };
    let token = |line: String| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    let mut first = candidate();
    let before = token(first.reads("leader with token"));
    let mut second = candidate();
    second.reads("waiting for the leadership");
    first.interrupt();
    first.reads("released");
    assert!(token(second.reads("leader with token")) > before);
}

#[test]
fn web_service_completes_requests_and_ends_gracefully() {
    let mut command = example("web_service");
    command.args(["memory:", "127.0.0.1:0"]);
    let mut service = Running::start(command);
    let address = service.reads("listening at").replace("listening at http://", "");
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"POST /orders/42/pay HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    let mut reply = String::new();
    client.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("order 42 paid with token 1"), "{reply}");
    service.interrupt();
    assert!(service.reads("ended").ends_with("all releases confirmed: true"));
}

#[test]
fn web_service_ends_gracefully_at_a_signal_before_its_first_request() {
    for name in ["INT", "TERM"] {
        let mut command = example("web_service");
        command.args(["memory:", "127.0.0.1:0"]);
        let mut service = Running::start(command);
        service.reads("listening at");
        service.signal(name);
        assert!(service.reads("ended").ends_with("all releases confirmed: true"));
    }
}

/// Returns the reply to a GET at this address, at which a server listens already.
#[cfg(feature = "metrics")]
fn get(address: &str, path: &str) -> String {
    let mut client = TcpStream::connect(address).unwrap();
    client
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let mut reply = String::new();
    client.read_to_string(&mut reply).unwrap();
    reply
}

#[cfg(feature = "metrics")]
#[test]
fn web_service_serves_its_metrics() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut command = example("web_service");
    command.args(["--metrics-listen", &free, "memory:", "127.0.0.1:0"]);
    let mut service = Running::start(command);
    service.reads("listening at");
    let reply = get(&free, "/metrics");
    assert!(reply.contains("polylock_lost_total{backend=\"memory\",reason=\"gone\"} 0"), "{reply}");
}

#[test]
fn opentelemetry_exports_the_spans_of_a_lock_and_the_hold_is_linked_to_the_trace_of_the_work() {
    let printed = stdout(example("opentelemetry").output().unwrap());
    // The span of the work may be exported before that of the hold, or after it.
    let of_span = |name: &str| {
        let lines = printed.lines().skip_while(|line| !line.ends_with(&format!(" : {name}"))).skip(1);
        let lines = lines.take_while(|line| *line != "Spans").filter(|line| line.contains("TraceId"));
        lines.map(|line| line.split(':').nth(1).unwrap().trim()).collect::<Vec<_>>()
    };
    let [acquisition, work, hold] = ["polylock.acquire", "pay", "polylock.hold"].map(of_span);
    assert!(acquisition.len() == 1 && acquisition == work, "{printed}");
    // The last one is that of the link.
    assert!(hold.len() == 2 && hold[0] != work[0] && hold[1] == work[0], "{printed}");
}

#[cfg(feature = "metrics")]
#[test]
fn observability_prints_spans_and_measurements() {
    let output = example("observability").output().unwrap();
    let logged = String::from_utf8(output.stderr.clone()).unwrap();
    let printed = stdout(output);
    assert!(logged.contains("orders/42"), "{logged}");
    let acquired = "polylock_acquire_duration_seconds {backend=memory, outcome=acquired} 3 samples";
    assert!(printed.contains(acquired), "{printed}");
}
