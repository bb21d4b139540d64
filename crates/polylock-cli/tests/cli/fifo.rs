//! Named pipes in place of files: one without a reader or a writer neither delays the command nor makes polylock deaf to signals.

use std::{
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::{fs::OFlags, process::Signal};

use crate::support::{Running, Workspace, eventually, lines, now, stderr};

/// The time in which a program would have blocked.
const MOMENT: Duration = Duration::from_millis(300);

fn fifo(workspace: &Workspace, name: &str) -> PathBuf {
    let path = workspace.path(name);
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

/// Reads a pipe to its end. It blocks until there is a writer.
fn reader(path: PathBuf) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut text = String::new();
        File::open(path).unwrap().read_to_string(&mut text).unwrap();
        text
    })
}

/// Waits until a process reads this pipe, and returns a writer: until it is dropped, the reader waits for data.
fn writer(path: &Path) -> File {
    let mut opened = None;
    eventually("a reader", || {
        let open =
            OpenOptions::new().write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
        opened = open.ok();
        opened.is_some()
    });
    opened.unwrap()
}

/// The kinds of the events.
fn events(text: &str) -> Vec<String> {
    lines(text).iter().map(|event| event["event"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_status_fifo_without_a_reader_delays_nothing() {
    let workspace = Workspace::new();
    fifo(&workspace, "status");
    let output = workspace.start("--status-file status x", "echo > ran").finish();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(workspace.read("ran"), "\n");
    let notes = stderr(&output).matches("nobody reads the FIFO status yet").count();
    assert_eq!(notes, 1, "{}", stderr(&output));
    // A command that can't be run is found, too.
    let failed = workspace.start("--status-file status -q x", "exit 3").finish();
    assert_eq!((failed.status.code(), stderr(&failed).as_str()), (Some(3), ""));
}

#[test]
fn a_status_fifo_has_all_events_for_a_reader_that_was_there_first() {
    let workspace = Workspace::new();
    let path = fifo(&workspace, "status");
    let read = reader(path.clone());
    let writer = writer(&path);
    let output = workspace.start("--status-file status x", "true").finish();
    assert_eq!(output.status.code(), Some(0));
    assert!(!stderr(&output).contains("FIFO"), "{}", stderr(&output));
    drop(writer);
    assert_eq!(events(&read.join().unwrap()), ["acquired", "released", "verdict"]);
}

#[test]
fn a_status_fifo_has_all_events_for_a_reader_that_comes_later() {
    let workspace = Workspace::new();
    let path = fifo(&workspace, "status");
    let run = workspace.start("--status-file status x", "echo > ran; until [ -e end ]; do sleep 0.02; done");
    workspace.wait_for_file("ran");
    let (mut read, mut text) = (BufReader::new(File::open(path).unwrap()), String::new());
    read.read_line(&mut text).unwrap();
    fs::write(workspace.path("end"), "").unwrap();
    read.read_to_string(&mut text).unwrap();
    assert_eq!(run.code(), Some(0));
    assert_eq!(events(&text), ["acquired", "released", "verdict"]);
}

/// polylock waits for the writer, as every program does; but a signal ends it.
#[test]
fn a_signal_ends_a_command_that_waits_for_a_fifo_with_its_store() {
    let workspace = Workspace::new();
    let path = fifo(&workspace, "url");
    for arguments in
        ["run x true", "acquire x", "acquire --hold x", "check", "bench", "serve", "elect x true"]
    {
        let mut command = workspace.polylock_without_store();
        command.args(["-S", "file:url"]).args(arguments.split(' '));
        let program = Running::spawn(command);
        let writer = writer(&path);
        program.signal(Signal::TERM);
        let signalled = now();
        let output = program.finish();
        assert!(now().since(signalled) < 5 * MOMENT, "{arguments}: {}", stderr(&output));
        assert!(!output.status.success(), "{arguments}");
        drop(writer);
    }
}

#[test]
fn a_page_is_not_written_to_a_fifo_without_a_reader() {
    let workspace = Workspace::new();
    fifo(&workspace, "page");
    for arguments in ["check --quick --only settings --html page", "bench --quick --html page"] {
        let mut command = workspace.polylock();
        command.args(arguments.split(' '));
        let output = Running::spawn(command).finish();
        assert_eq!(output.status.code(), Some(73), "{arguments}: {}", stderr(&output));
        assert!(
            stderr(&output).contains("page can't be written: nobody reads this FIFO"),
            "{}",
            stderr(&output)
        );
    }
    let read = reader(workspace.path("page"));
    let mut check = workspace.polylock();
    check.args(["check", "--quick", "--only", "settings", "--html", "page"]);
    // The reader may not have opened it yet.
    eventually("a page", || check.output().unwrap().status.success());
    assert!(read.join().unwrap().ends_with("</html>\n"));
}

/// printf secret | sha256sum
const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A pipe can be read once, and the file of the callers is read again and again.
#[test]
fn a_server_with_its_callers_in_a_pipe_goes_on() {
    let workspace = Workspace::new();
    let path = fifo(&workspace, "access");
    let mut serve = workspace.polylock();
    serve.args(["serve", "--listen", "127.0.0.1:0", "--access", "access"]).stderr(Stdio::null());
    let mut server = Server(serve.spawn().unwrap());
    let text = format!(
        "[[caller]]\nname = \"a\"\ntoken_sha256 = \"{SECRET}\"\nallow = [{{ prefix = \"\", rights = [\"exclusive\"] }}]\n"
    );
    writer(&path).write_all(text.as_bytes()).unwrap();
    let mut url = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let url = format!("polylock+{}?polylock.token=secret", url.trim());
    let until = now() + Duration::from_secs(5);
    // The file is read again every two seconds.
    while now() < until {
        let mut run = workspace.polylock_without_store();
        run.args(["-S", &url, "run", "--no-wait", "x", "true"]);
        let output = Running::spawn(run).finish();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        thread::park_timeout(MOMENT);
    }
}
