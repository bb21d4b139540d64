//! `polylock serve`, and the service as a store.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

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

#[test]
fn a_public_address_is_refused() {
    let workspace = Workspace::new();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7420"] {
        let output = workspace.call(&format!("serve --listen {address}"));
        assert_eq!(output.status.code(), Some(64), "{}", stderr(&output));
        assert!(stderr(&output).contains("authentication"), "{}", stderr(&output));
    }
}
