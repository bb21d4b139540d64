//! The guides in `docs`: every command on them runs as it is written, and has the output that the page shows.

mod page;
mod session;

use std::{
    collections::BTreeSet,
    fs,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use polylock_integration_tests::{cargo::workspace, servers};
use tempfile::TempDir;

use self::page::{Block, Kind, Store, blocks, cron_commands, steps};

/// The script that installs the packages, and runs the commands for that.
const PACKAGES: &str = include_str!("../../../../packaging/test.sh");

/// The URL of the server on the pages, and that of the pooler in front of it.
const SERVER: &str = "postgres://locks@db.example.com/app";
const POOLER: &str = "postgres://locks@pgbouncer.example.com/app";

macro_rules! guides {
    ($($name:ident: $file:literal)*) => {
        const FILES: &[&str] = &[$($file),*];

        $(#[test]
        fn $name() {
            let page = fs::read_to_string(workspace().join("docs").join($file)).unwrap();
            let problems = problems(&page);
            assert!(problems.is_empty(), "docs/{}:\n{}", $file, problems.join("\n"));
        })*
    };
}

guides! {
    quick_start: "quick-start.md"
    choosing: "choosing.md"
    migrations: "migrations.md"
    cron: "cron.md"
    fencing: "fencing.md"
    scripts: "scripts.md"
    troubleshooting: "troubleshooting.md"
    install: "install.md"
    recipes: "recipes.md"
}

/// Returns the commands of a page that do not work as it says.
fn problems(page: &str) -> Vec<String> {
    let blocks = match blocks(page) {
        Ok(blocks) => blocks,
        Err(problem) => return vec![problem],
    };
    let mut problems = Vec::new();
    let sessions = || blocks.iter().filter(|block| matches!(block.kind, Kind::Session(_)));
    for (index, block) in blocks.iter().enumerate() {
        let found = match &block.kind {
            Kind::Session(store) => run(*store, block, &blocks[..index]),
            Kind::Crontab => {
                let commands = cron_commands(&block.text).into_iter();
                let unknown = commands.filter(|command| {
                    !sessions().any(|session| session.text.contains(&format!("$ {command}\n")))
                });
                unknown.map(|command| format!("{command}: no session of the page runs it")).collect()
            }
            Kind::Install => {
                let commands = block.text.lines().map(|line| line.split(" # ").next().unwrap_or(line).trim());
                let unknown = commands.filter(|command| !PACKAGES.contains(command));
                unknown.map(|command| format!("{command}: packaging/test.sh does not run it")).collect()
            }
            Kind::File(_) | Kind::Rust | Kind::Text => Vec::new(),
        };
        problems.extend(found.into_iter().map(|problem| format!("line {}: {problem}", block.line)));
    }
    problems
}

/// Runs a session in a directory of its own, with the files that the page has shown `before`.
fn run(store: Store, session: &Block, before: &[Block]) -> Vec<String> {
    let directory = TempDir::new().unwrap();
    for block in before {
        if let Kind::File(name) = &block.kind {
            fs::write(directory.path().join(name), &block.text).unwrap();
        }
    }
    match steps(&session.text) {
        Ok(steps) => session::run(directory.path(), &steps, &replacements(store)),
        Err(problem) => vec![problem],
    }
}

/// Returns the URLs of the pages, and those of the servers, with an empty database.
fn replacements(store: Store) -> Vec<(String, String)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (server, pooler) = match store {
        Store::Sqlite => return Vec::new(),
        Store::Postgres => (servers::postgres().unwrap().url(), None),
        Store::PgBouncer => {
            let pooled = servers::pgbouncer().unwrap();
            (pooled.server.url(), Some(pooled.pooler.url()))
        }
    };
    let database = format!("guides_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let created = Command::new("psql").args(["-qc", &format!("CREATE DATABASE {database}"), server]).status();
    assert!(created.is_ok_and(|status| status.success()), "psql can't create a database on {server}");
    let of = |url: &str| format!("{}/{database}", url.rsplit_once('/').unwrap().0);
    let server = (SERVER.to_owned(), of(server));
    pooler.map(|pooler| (POOLER.to_owned(), of(pooler))).into_iter().chain([server]).collect()
}

#[test]
fn every_page_with_a_session_is_tested() {
    let pages = fs::read_dir(workspace().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let with_session = pages.filter(|path| fs::read_to_string(path).unwrap().contains("```console"));
    let names: BTreeSet<String> =
        with_session.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    let untested: Vec<_> = names.iter().filter(|name| !FILES.contains(&name.as_str())).collect();
    assert_eq!(untested, [""; 0]);
}

/// Returns the command lines of `polylock` in a unit of systemd, or in a manifest of Kubernetes with lists in one line.
fn commands(file: &str) -> Vec<String> {
    let text = fs::read_to_string(workspace().join("packaging").join(file)).unwrap();
    let mut lines = text.lines().map(str::trim);
    let list = |line: &str| line.trim_matches(['[', ']']).replace(", ", " ");
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        if let Some(command) = line.strip_prefix("ExecStart=") {
            found.push(command.to_owned());
        } else if let Some(command) = line.strip_prefix("command: ") {
            let arguments = lines.next().unwrap().strip_prefix("args: ").unwrap();
            found.push(format!("{} {}", list(command), list(arguments)));
        }
    }
    found
}

/// The commands in the examples for other programs run, with paths of this machine.
#[test]
fn the_examples_for_systemd_and_kubernetes_run() {
    let paths = [
        ("/usr/bin/polylock", "polylock"),
        ("%d/store", "store"),
        ("/etc/polylock/jobs/%i", "echo done"),
        ("%i", "backup"),
        ("/app/report", "echo done"),
        ("/app/migrate up", "echo done"),
        ("\"$(POD_NAME)\"", "shop-1"),
    ];
    for file in ["systemd/polylock-run@.service", "kubernetes/cronjob.yaml", "kubernetes/migrations.yaml"] {
        let commands = commands(file);
        assert_eq!(commands.len(), 1, "{file}: {commands:?}");
        let command = paths.iter().fold(commands[0].clone(), |line, (from, to)| line.replace(from, to));
        let page = format!("```console\n$ echo \"sqlite://$PWD/locks.db\" >store\n$ {command}\ndone\n```\n");
        assert_eq!(problems(&page), [""; 0], "{file}");
    }
}

/// The planted twins: pages with one mistake each, and the same pages without it.
#[test]
fn a_wrong_page_is_found() {
    let session = |text: &str| format!("```console\n{text}\n```\n");
    let right = [
        session("$ polylock run x -- echo hi\nhi\n$ polylock run --no-wait x false\n$ echo $?\n1"),
        session("$ polylock run -q x sleep 60 &\n$ polylock status x\nx: held\n  held by …\n  store: …"),
        format!("```sh job.sh\necho $((1 + 1))\n```\n{}", session("$ sh job.sh\n2")),
        format!("```cron\n0 3 * * * polylock run x true\n```\n{}", session("$ polylock run x true")),
    ];
    for page in &right {
        assert_eq!(problems(page), [""; 0], "{page}");
    }
    let wrong = [
        (session("$ polylock run --no-wiat x true"), "unexpected argument"),
        (session("$ polylock run x -- echo hi\nho"), "in fact"),
        (session("$ polylock run x -- echo hi"), "in fact"),
        (session("$ true\nhi"), "in fact"),
        (session("$ polylock run x false"), "it failed with 1"),
        (session("$ polylock run x false\n$ echo $?\n2"), "in fact"),
        (session("hi"), "output before the first command"),
        (session("$ exit"), "it did not end"),
        (right[2].replace("1 + 1", "1 + 2"), "in fact"),
        (right[3].replace("* polylock run x", "* polylock run y"), "no session of the page runs it"),
        ("```sh\nmake install\n```\n".to_owned(), "packaging/test.sh does not run it"),
        ("```bash\nls\n```\n".to_owned(), "unknown block"),
        ("```console\n$ ls\n".to_owned(), "does not end"),
    ];
    for (page, expected) in wrong {
        let problems = problems(&page).join("\n");
        assert!(problems.contains(expected), "{page}: {problems}");
    }
}
