//! The process that supervises a server. It outlives the test process until it has cleaned up.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::process::Process;

/// The timeout for a command of the shell, such as the creation of a data directory.
const LIMIT: Duration = Duration::from_secs(120);

/// A shell that owns the directory and the processes of a server, and removes both when this process has ended, even if it was
/// killed. It does not depend on `Drop`, which does not run for a `static` or in a killed process.
#[derive(Debug)]
pub(super) struct Keeper {
    shell: Process,
    directory: PathBuf,
    /// The words before a command that runs as the user of the server.
    drop_privileges: Vec<String>,
    uid: String,
    server: Option<u32>,
}

impl Keeper {
    /// Creates an empty directory. If this process is root it belongs to the first of `users` that exists, because
    /// database servers refuse to run as root.
    ///
    /// # Panics
    /// If the directory can't be created.
    pub(super) fn new(name: &str, users: &[&str]) -> Self {
        // A new session: neither Ctrl-C nor a signal to the process group of the test reaches it.
        let arguments = ["sh", "-c", include_str!("keeper.sh"), "keeper", name];
        let mut shell = Process::start("setsid", arguments);
        let directory =
            shell.next_line(LIMIT).unwrap_or_else(|| panic!("can't create a directory for {name}"));
        let (uid, directory) = (rustix::process::getuid(), directory.into());
        let mut keeper =
            Self { shell, directory, drop_privileges: Vec::new(), uid: uid.to_string(), server: None };
        if uid.is_root() {
            let (uid, gid) = users
                .iter()
                .find_map(|user| ids(user))
                .unwrap_or_else(|| panic!("this machine has none of the users {users:?}"));
            keeper.run(["chown", &format!("{uid}:{gid}"), "."]);
            let words = ["setpriv", "--reuid", &uid, "--regid", &gid, "--clear-groups", "--"];
            keeper.drop_privileges = words.map(str::to_owned).to_vec();
            keeper.uid = uid;
        }
        keeper
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the absolute path of `name` in the directory.
    pub(super) fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Writes a file in the directory that the server can read, and returns its path.
    ///
    /// # Panics
    /// If it can't be written.
    pub(super) fn write(&self, name: &str, text: &str) -> String {
        let path = self.file(name);
        fs::write(&path, text).unwrap_or_else(|error| panic!("can't write {path}: {error}"));
        path
    }

    /// Returns the id of the user that the server runs as.
    pub(super) fn uid(&self) -> &str {
        &self.uid
    }

    /// Returns the output of the server and of all commands.
    pub(super) fn log(&self) -> String {
        fs::read(self.directory.join("log")).map_or_else(
            |error| format!("(no log: {error})"),
            |bytes| String::from_utf8_lossy(&bytes).into_owned(),
        )
    }

    /// Runs `command` in the directory to its end.
    ///
    /// # Panics
    /// If it fails, with its output.
    pub(super) fn run<S: AsRef<str>>(&mut self, command: impl IntoIterator<Item = S>) {
        let command = quoted(command);
        let status = self.order(&format!("run {command}"));
        assert!(status == "0", "exit status {status} of {command}\n{}", self.log());
    }

    /// Runs `command` in the directory to its end, and returns true if it succeeds.
    pub(super) fn succeeds<S: AsRef<str>>(&mut self, command: impl IntoIterator<Item = S>) -> bool {
        self.order(&format!("run {}", quoted(command))) == "0"
    }

    /// Runs `command` as the user of the server.
    ///
    /// # Panics
    /// If it fails, with its output.
    pub(super) fn run_as_user<S: AsRef<str>>(&mut self, command: impl IntoIterator<Item = S>) {
        self.run(self.as_user(command));
    }

    /// Runs `command` as the user of the server after the final end of the server.
    pub(super) fn finally<S: AsRef<str>>(&mut self, command: impl IntoIterator<Item = S>) {
        let command = quoted(self.as_user(command));
        self.order(&format!("finally {command}"));
    }

    /// Starts the server.
    pub(super) fn start<S: AsRef<str>>(&mut self, command: impl IntoIterator<Item = S>) {
        let command = quoted(self.as_user(command));
        let answer = self.order(&format!("start {command}"));
        self.server = Some(answer.parse().unwrap_or_else(|_| panic!("no process id: {answer:?}")));
    }

    /// Returns the process id of the server; `None` if it was killed.
    pub(super) fn server(&self) -> Option<u32> {
        self.server
    }

    /// Sends SIGKILL to the server and its descendants.
    pub(super) fn kill(&mut self) {
        self.order("kill");
        self.server = None;
    }

    /// Sends SIGSTOP to them.
    pub(super) fn freeze(&mut self) {
        self.order("freeze");
    }

    /// Sends SIGCONT to them.
    pub(super) fn thaw(&mut self) {
        self.order("thaw");
    }

    fn as_user<S: AsRef<str>>(&self, command: impl IntoIterator<Item = S>) -> Vec<String> {
        let command = command.into_iter().map(|word| word.as_ref().to_owned());
        self.drop_privileges.iter().cloned().chain(command).collect()
    }

    fn order(&mut self, line: &str) -> String {
        self.shell.send_line(line);
        let answer = self.shell.next_line(LIMIT);
        answer.unwrap_or_else(|| panic!("no reply to {line:?} within {LIMIT:?}\n{}", self.log()))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // A shell that was killed can't receive the line.
        if self.shell.wait_for_exit_within(Duration::ZERO).is_none() {
            self.shell.send_line("end");
            self.shell.wait_for_exit_within(LIMIT);
        }
    }
}

/// Returns true if the process `id` runs.
pub(super) fn is_running(id: Option<u32>) -> bool {
    let stat = id.and_then(|id| fs::read_to_string(format!("/proc/{id}/stat")).ok());
    // A process that has ended stays a zombie until the shell waits for it.
    stat.is_some_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X'])))
}

/// Returns the ids of the user `name` of this machine, and of its group.
fn ids(name: &str) -> Option<(String, String)> {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    users.lines().find_map(|line| match line.split(':').collect::<Vec<_>>()[..] {
        [user, _, uid, gid, ..] if user == name => Some((uid.to_owned(), gid.to_owned())),
        _ => None,
    })
}

/// Quotes `command` for a shell.
fn quoted<S: AsRef<str>>(command: impl IntoIterator<Item = S>) -> String {
    command.into_iter().fold(String::new(), |mut line, word| {
        let word = word.as_ref();
        assert!(!word.contains('\n'), "a word must not contain a line feed: {word:?}");
        write!(line, "'{}' ", word.replace('\'', r"'\''")).ok();
        line
    })
}
