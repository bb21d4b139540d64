//! The structure of the source: no import cycles, dependencies between crates point downward, every store has the same files, and no
//! file is long.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use polylock_integration_tests::cargo::{cargo, workspace};
use serde_json::Value;

use crate::imports::{Imports, cycles, imports};

/// The crates, from the bottom up. A crate depends on crates of lower levels only.
const LEVELS: [&[&str]; 8] = [
    &["polylock-fuzz"],
    &["polylock-core"],
    &["polylock-protocol"],
    &[
        "polylock-sql",
        "polylock-redis",
        "polylock-zookeeper",
        "polylock-azure",
        "polylock-http",
        "polylock-server",
        "polylock-testkit",
        "polylock-tower",
        "template-store",
    ],
    &["polylock", "polylock-models"],
    &["polylock-bench"],
    &["polylock-cli"],
    &["polylock-integration-tests"],
];

/// The most lines of a file.
const MAX_LINES: usize = 500;

/// The files of a store: its configuration, how it is opened, the contract's operations, inspection, and the meaning of the server's
/// errors. The databases share a backend and inspection, and each has a dialect.
const STORE: &[&str] = &["lib", "config", "connect", "backend", "inspect", "error"];

/// The item that a file of this name defines.
const DEFINITIONS: [(&str, &str); 5] = [
    ("config", "pub struct Config {"),
    ("connect", "pub async fn connect(config: Config) -> Result<Store> {"),
    ("backend", " Backend for "),
    ("dialect", " Dialect for "),
    ("inspect", " Inspect for "),
];

/// The directories of the stores, and their files. Code that several stores share is in a directory above them or beside them.
const STORES: [(&str, &[&str]); 15] = [
    ("crates/polylock-azure/src", STORE),
    ("crates/polylock-http/src", STORE),
    ("crates/polylock-zookeeper/src", STORE),
    ("crates/polylock-redis/src", &["lib", "error"]),
    ("crates/polylock-redis/src/queue", &["mod", "backend", "inspect"]),
    ("crates/polylock-redis/src/single", &["mod", "config", "connect"]),
    ("crates/polylock-redis/src/sentinel", &["mod", "config", "connect"]),
    ("crates/polylock-redis/src/cluster", &["mod", "config", "connect"]),
    ("crates/polylock-redis/src/redlock", &["mod", "config", "connect", "backend", "inspect"]),
    ("crates/polylock-sql/src/engine", &["mod", "backend", "inspect"]),
    ("crates/polylock-sql/src/pessimistic", &["mod", "backend", "inspect"]),
    ("crates/polylock-sql/src/sqlite", &["mod", "config", "connect", "dialect", "error"]),
    ("crates/polylock-sql/src/postgres", &["mod", "config", "connect", "dialect", "error"]),
    ("crates/polylock-sql/src/mysql", &["mod", "config", "connect", "dialect", "error"]),
    ("docs/template-store/src", &["lib", "config", "connect", "backend"]),
];

/// Returns the cycles between the files of the library and of each program in `directory`.
fn cycles_in(directory: &Path) -> Vec<String> {
    let all = roots(directory).into_iter().map(|root| imports(&root));
    all.flat_map(|imports| cycles(&imports).iter().map(|cycle| arrows(&imports, cycle)).collect::<Vec<_>>())
        .collect()
}

/// Returns the root files of the library and the programs in `directory`.
fn roots(directory: &Path) -> Vec<PathBuf> {
    let source = directory.join("src");
    let programs = fs::read_dir(source.join("bin")).into_iter().flatten().map(|entry| entry.unwrap().path());
    let programs = programs.map(|path| if path.is_dir() { path.join("main.rs") } else { path });
    let mut roots = vec![source.join("lib.rs")];
    roots.extend(Some(source.join("main.rs")).filter(|root| root.exists()));
    roots.extend(programs);
    roots
}

/// Returns the imports between the files of a cycle, one a line.
fn arrows(imports: &Imports, cycle: &BTreeSet<&Path>) -> String {
    let arrows = cycle.iter().flat_map(|from| {
        let inside = imports[*from].iter().filter(|(to, _)| cycle.contains(to.as_path()));
        inside.map(move |(to, names)| format!("{} takes {names:?} from {}\n", from.display(), to.display()))
    });
    arrows.collect()
}

/// Returns each dependency on a crate of the same or a higher level.
fn upward(dependencies: &[(String, String)]) -> Vec<String> {
    let level = |name: &str| LEVELS.iter().position(|level| level.contains(&name));
    let is_downward = |(from, to): &&(String, String)| level(to).is_some() && level(to) < level(from);
    dependencies
        .iter()
        .filter(|arrow| !is_downward(arrow))
        .map(|(from, to)| format!("{from} -> {to}"))
        .collect()
}

/// Returns the files that a store in `directory` lacks, or that do not define what their name says.
fn missing(directory: &Path, files: &[&str]) -> Vec<PathBuf> {
    let is_missing = |file: &&&str| {
        let text = fs::read_to_string(directory.join(file).with_extension("rs"));
        let definition = DEFINITIONS.iter().find(|(of, _)| of == *file).map_or("", |(_, text)| text);
        !text.is_ok_and(|text| text.contains(definition))
    };
    files.iter().filter(is_missing).map(|file| directory.join(file).with_extension("rs")).collect()
}

/// Adds the Rust files in `directory`, with their numbers of lines.
fn lines(directory: &Path, found: &mut Vec<(PathBuf, usize)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            lines(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path.clone(), fs::read_to_string(&path).unwrap().lines().count()));
        }
    }
}

/// Returns the files with too many lines.
fn too_long(directories: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    directories.iter().for_each(|directory| lines(directory, &mut found));
    assert!(!found.is_empty());
    found.into_iter().filter(|(_, lines)| *lines > MAX_LINES).map(|(path, _)| path).collect()
}

/// Creates a crate with these files.
fn planted(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    directory
}

#[test]
fn no_file_of_a_crate_depends_on_itself() {
    let crates = fs::read_dir(workspace().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let others = ["integration-tests", "docs/template-store"].map(|name| workspace().join(name));
    let found: Vec<String> = crates.chain(others).flat_map(|directory| cycles_in(&directory)).collect();
    assert!(found.is_empty(), "{} cycles:\n{}", found.len(), found.join("\n"));
}

#[test]
fn each_form_of_an_import_is_found() {
    let lib = (
        "src/lib.rs",
        "mod a;\nmod b;\nmod c;\npub use a::*;\npub(crate) use self::b::{B, Other as Renamed};\n",
    );
    let b = (
        "src/b/mod.rs",
        "mod inner;\npub struct Other;\npub use inner::Inner;\npub struct B(pub(crate) crate::A);\n",
    );
    let inner = ("src/b/inner.rs", "pub struct Inner;\n");
    let c = ("src/c.rs", "pub fn c() {}\n");
    for import in [
        "use crate::B;",
        "use crate::{c::c, b::{self, B}};",
        "use crate::Renamed;",
        "use super::b::B as Local;",
        "fn f() { crate::b::B::new() }",
        "fn f() { use crate::{b}; b::B::new() }",
        "fn f() { println!(\"{}\", crate::Renamed) }",
        "use crate::*; fn f(_: Renamed) {}",
        "#[cfg(test)] mod tests { use super::*; } use super::Renamed;",
        "mod nested { use super::super::B; }",
    ] {
        let a = format!("pub struct A;\n{import}\n");
        let directory = planted(&[lib, ("src/a.rs", &a), b, inner, c]);
        let found = cycles_in(directory.path());
        assert_eq!(found.len(), 1, "{import}: {found:?}");
        assert!(found[0].contains("a.rs takes") && !found[0].contains("c.rs"), "{import}: {found:?}");
    }
    for no_cycle in [
        "use crate::c::c;",
        "use crate::b::Inner;",
        "#[cfg(test)] mod tests { use crate::B; }",
        "pub use crate::B;",
        "macro_rules! m { () => { $crate::B } }",
        "use b::B;",
    ] {
        let a = format!("pub struct A;\n{no_cycle}\n");
        let found = cycles_in(planted(&[lib, ("src/a.rs", &a), b, inner, c]).path());
        assert!(found.is_empty(), "{no_cycle}: {found:?}");
    }
    // A type with a lifetime is not defined there.
    let lib = ("src/lib.rs", "mod a;\nmod b;\nuse b::Inner;\nfn all() -> &'static Inner { a::f() }\n");
    let a = ("src/a.rs", "pub fn f(_: super::Inner) {}\n");
    let found = cycles_in(planted(&[lib, a, ("src/b.rs", inner.1)]).path());
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn a_cycle_between_the_files_of_a_program_is_found() {
    let lib = ("src/lib.rs", "");
    let main = ("src/main.rs", "mod a;\nuse a::A;\npub struct Shared;\n");
    let a = ("src/a.rs", "pub struct A(crate::Shared);\n");
    let [tool, one] = ["src/bin/tool/main.rs", "src/bin/one.rs"].map(|path| (path, "fn main() {}\n"));
    let [found, in_tool] = [
        [lib, main, a, tool, one],
        [lib, one, ("src/main.rs", ""), ("src/bin/tool/main.rs", main.1), ("src/bin/tool/a.rs", a.1)],
    ]
    .map(|files| cycles_in(planted(&files).path()));
    assert!(found.len() == 1 && found[0].contains("src/a.rs takes"), "{found:?}");
    assert!(in_tool.len() == 1 && in_tool[0].contains("tool/a.rs takes"), "{in_tool:?}");
}

#[test]
fn dependencies_between_crates_point_downward() {
    let output =
        cargo().args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).output().unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let names: Vec<&Value> = packages.iter().map(|package| &package["name"]).collect();
    let mut dependencies = Vec::new();
    for package in packages {
        // A crate's tests may use any crate.
        let used = package["dependencies"].as_array().unwrap().iter().filter(|used| used["kind"] != "dev");
        let used = used.filter(|used| names.contains(&&used["name"]));
        let name = |package: &Value| package["name"].as_str().unwrap().to_owned();
        dependencies.extend(used.map(|used| (name(package), name(used))));
    }
    assert!(dependencies.len() > 10, "{dependencies:?}");
    assert_eq!(upward(&dependencies), [""; 0]);
    // The planted twins: up, to a store beside it, and to a crate without a level.
    for (from, to) in
        [("polylock-core", "polylock"), ("polylock-sql", "polylock-redis"), ("polylock", "polylock-new")]
    {
        assert_eq!(upward(&[(from.to_owned(), to.to_owned())]).len(), 1, "{from} -> {to}");
    }
}

#[test]
fn every_store_has_the_same_files() {
    let absent: Vec<_> =
        STORES.iter().flat_map(|(directory, files)| missing(&workspace().join(directory), files)).collect();
    assert!(absent.is_empty(), "{absent:?}");
    // The planted twins: the function that opens a store is in another file, and the configuration has another name.
    let directory = planted(&[("lib.rs", ""), ("config.rs", "pub struct Settings {"), ("open.rs", "")]);
    let absent = missing(directory.path(), &["lib", "config", "connect"]);
    assert_eq!(absent, ["config.rs", "connect.rs"].map(|file| directory.path().join(file)));
}

#[test]
fn no_file_is_long() {
    let directories =
        ["crates", "integration-tests", "docs/template-store"].map(|name| workspace().join(name));
    assert_eq!(too_long(&directories), [""; 0].map(PathBuf::from));
    // The planted twin: one line more.
    let (longest, longer) = ("//\n".repeat(MAX_LINES), "//\n".repeat(MAX_LINES + 1));
    let directory = planted(&[("a/longest.rs", &longest), ("a/longer.rs", &longer), ("a/text.md", &longer)]);
    assert_eq!(too_long(&[directory.path().to_owned()]), [directory.path().join("a/longer.rs")]);
}
