//! The process that keeps a server: it outlives the test process, for as long as it takes to clean up behind it.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::process::Process;

/// How long the making of a data directory may take.
const LIMIT: Duration = Duration::from_secs(120);

/// A server's directory and its processes, in the hands of a shell that ends both when this process has ended, whatever
/// ended it. It needs no `Drop` for that, which no `static` ever gets and no killed process.
#[derive(Debug)]
pub(super) struct Keeper {
    shell: Process,
    directory: PathBuf,
    /// What a command begins with to be run as the server's user.
    drop_privileges: Vec<String>,
    uid: String,
    server: Option<u32>,
}

impl Keeper {
    /// With an empty directory, which belongs to the first of `users` that there is where this process is root, because
    /// database servers refuse to be root; else to the own user.
    ///
    /// # Panics
    /// If there is no directory for it.
    pub(super) fn new(name: &str, users: &[&str]) -> Self {
        // A session of its own: neither Ctrl-C nor a signal to the test's process group reaches it.
        let arguments = ["sh", "-c", include_str!("keeper.sh"), "keeper", name];
        let mut shell = Process::start("setsid", arguments);
        let directory = shell.line_within(LIMIT).unwrap_or_else(|| panic!("no directory for {name}"));
        let (uid, directory) = (rustix::process::getuid(), directory.into());
        let mut keeper =
            Self { shell, directory, drop_privileges: Vec::new(), uid: uid.to_string(), server: None };
        if uid.is_root() {
            let (uid, gid) =
                users.iter().find_map(|user| ids(user)).unwrap_or_else(|| panic!("none of {users:?}"));
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

    /// The absolute path of `name` in the directory.
    pub(super) fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// A file in the directory that the server can read.
    ///
    /// # Panics
    /// If it can't be written.
    pub(super) fn write(&self, name: &str, text: &str) -> String {
        let path = self.file(name);
        fs::write(&path, text).unwrap_or_else(|error| panic!("can't write {path}: {error}"));
        path
    }

    /// The id of the user that the server runs as.
    pub(super) fn uid(&self) -> &str {
        &self.uid
    }

    /// What the server and all commands have written.
    pub(super) fn log(&self) -> String {
        fs::read(self.directory.join("log")).map_or_else(
            |error| format!("(no log: {error})"),
            |bytes| String::from_utf8_lossy(&bytes).into_owned(),
        )
    }

    /// Runs `command` in the directory to its end.
    ///
    /// # Panics
    /// If it fails, with what it wrote.
    pub(super) fn run<S: AsRef<str>>(&mut self, command: impl IntoIterator<Item = S>) {
        let command = quoted(command);
        let status = self.ask(&format!("run {command}"));
        assert!(status == "0", "exit status {status} of {command}\n{}", self.log());
    }

    /// The same as the server's user.
    ///
    /// # Panics
    /// If it fails, with what it wrote.
    pub(super) fn run_as_user<S: AsRef<str>>(&mut self, command: impl IntoIterator<Item = S>) {
        self.run(self.as_user(command));
    }

    /// Has `command` run as the server's user when the server has ended for good.
    pub(super) fn finally<S: AsRef<str>>(&mut self, command: impl IntoIterator<Item = S>) {
        let command = quoted(self.as_user(command));
        self.ask(&format!("finally {command}"));
    }

    /// Starts the server.
    pub(super) fn start<S: AsRef<str>>(&mut self, command: impl IntoIterator<Item = S>) {
        let command = quoted(self.as_user(command));
        let answer = self.ask(&format!("start {command}"));
        self.server = Some(answer.parse().unwrap_or_else(|_| panic!("no process id: {answer:?}")));
    }

    /// The server's process id, unless it has been killed.
    pub(super) fn server(&self) -> Option<u32> {
        self.server
    }

    /// SIGKILL to the server and all that it has started.
    pub(super) fn kill(&mut self) {
        self.ask("kill");
        self.server = None;
    }

    /// SIGSTOP to the same.
    pub(super) fn freeze(&mut self) {
        self.ask("freeze");
    }

    /// SIGCONT to the same.
    pub(super) fn thaw(&mut self) {
        self.ask("thaw");
    }

    fn as_user<S: AsRef<str>>(&self, command: impl IntoIterator<Item = S>) -> Vec<String> {
        let command = command.into_iter().map(|word| word.as_ref().to_owned());
        self.drop_privileges.iter().cloned().chain(command).collect()
    }

    fn ask(&mut self, line: &str) -> String {
        self.shell.tell(line);
        let answer = self.shell.line_within(LIMIT);
        answer.unwrap_or_else(|| panic!("no answer to {line:?}\n{}", self.log()))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // If it has been killed there is nobody left to tell.
        if self.shell.ends_within(Duration::ZERO).is_none() {
            self.shell.tell("end");
            self.shell.ends_within(LIMIT);
        }
    }
}

/// Whether the process `id` still runs.
pub(super) fn runs(id: Option<u32>) -> bool {
    let stat = id.and_then(|id| fs::read_to_string(format!("/proc/{id}/stat")).ok());
    // One that has ended stays as a zombie until its keeper looks at it.
    stat.is_some_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X'])))
}

/// The ids of the user `name` of this machine, and of its group.
fn ids(name: &str) -> Option<(String, String)> {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    users.lines().find_map(|line| match line.split(':').collect::<Vec<_>>()[..] {
        [user, _, uid, gid, ..] if user == name => Some((uid.to_owned(), gid.to_owned())),
        _ => None,
    })
}

/// `command` as a shell reads it.
fn quoted<S: AsRef<str>>(command: impl IntoIterator<Item = S>) -> String {
    command.into_iter().fold(String::new(), |mut line, word| {
        let word = word.as_ref();
        assert!(!word.contains('\n'), "a line ends an order: {word:?}");
        write!(line, "'{}' ", word.replace('\'', r"'\''")).ok();
        line
    })
}
