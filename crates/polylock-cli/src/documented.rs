//! Tests that the pages match the program: commands, options, exit codes, variables and the keys of URLs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use clap::{Arg, Command, CommandFactory};

use crate::{args::Cli, help};

const README: &str = include_str!("../README.md");
const EXIT: &str = include_str!("exit.rs");

/// The options that clap adds.
const GENERATED: [&str; 2] = ["help", "version"];

fn cli() -> Command {
    let mut cli = Cli::command();
    cli.build();
    cli
}

/// Returns the commands, each with its own arguments.
fn commands() -> Vec<Command> {
    let cli = cli();
    cli.get_subcommands()
        .filter(|command| command.get_name() != "help")
        .cloned()
        .chain([cli.clone()])
        .collect()
}

/// Returns all spellings of an option.
fn spellings(option: &Arg) -> Vec<String> {
    let long = option.get_long_and_visible_aliases().unwrap_or_default();
    let short = option.get_short().map(|short| format!("-{short}"));
    long.into_iter().map(|long| format!("--{long}")).chain(short).collect()
}

/// Returns the words of a text that begin with `start` and consist of letters, digits and `others`.
fn words<'a>(text: &'a str, start: &'a str, others: &'a str) -> BTreeSet<&'a str> {
    let is_part = move |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    let separate = |at: usize| !text[..at].chars().next_back().is_some_and(is_part);
    text.match_indices(start)
        .filter(|(at, _)| separate(*at))
        .map(|(at, _)| {
            let rest = &text[at..];
            let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
            rest[..end].trim_end_matches(['.', '-', '_'])
        })
        .filter(|word| word.len() > start.len())
        .collect()
}

/// Returns the sources of the tests that run the program.
fn tests() -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directories = ["tests/cli", "../../integration-tests/tests/processes/cli"];
    let files =
        directories.iter().flat_map(|directory| fs::read_dir(here.join(directory)).unwrap().flatten());
    files.map(|file| fs::read_to_string(file.path()).unwrap()).collect()
}

/// Returns the help texts and the README.
fn pages() -> String {
    let long = commands().into_iter().map(|mut command| command.render_long_help().to_string());
    long.collect::<Vec<_>>().join("\n") + README
}

#[test]
fn every_command_and_option_is_run_by_a_test() {
    let tests = tests();
    let is_run = |word: &str| {
        let ends = |at: usize| tests[at + word.len()..].starts_with(['"', ' ', '=', '\'', '\\', '{']);
        let begins = |at: usize| tests[..at].ends_with(['"', ' ', '(', '[']);
        tests.match_indices(word).any(|(at, _)| begins(at) && ends(at))
    };
    let mut missing = Vec::new();
    for command in commands() {
        let name = command.get_name();
        if name != "polylock" && !is_run(name) {
            missing.push(name.to_owned());
        }
        for option in command.get_arguments().filter(|option| !option.is_positional()) {
            let spellings = spellings(option);
            if !GENERATED.contains(&option.get_id().as_str()) && !spellings.iter().any(|word| is_run(word)) {
                missing.push(format!("{name} {}", spellings.join(" ")));
            }
        }
    }
    assert_eq!(missing, [""; 0]);
}

#[test]
fn every_option_on_a_page_exists() {
    let known: BTreeSet<String> = commands()
        .iter()
        .flat_map(|command| command.get_arguments().flat_map(spellings).collect::<Vec<_>>())
        .collect();
    let pages = pages();
    let unknown: Vec<_> =
        words(&pages, "--", "-").into_iter().filter(|word| !known.contains(*word)).collect();
    assert_eq!(unknown, [""; 0]);
}

/// Returns the codes of the table below `title`, which are the first cells of its lines.
fn codes(text: &str, title: &str, mark: &str) -> BTreeSet<u8> {
    let table = text.split_once(title).unwrap().1;
    let lines = table.lines().skip(1).skip_while(|line| line.is_empty()).take_while(|line| !line.is_empty());
    let first = lines.map(|line| line.trim_start_matches(mark).trim().split(mark).next().unwrap().to_owned());
    let mut found = BTreeSet::new();
    for cell in first {
        let numbers = cell.split([',', ' ']).map(|word| word.trim_end_matches('…'));
        found.extend(
            numbers.map_while(|word| if word.is_empty() { Some(0) } else { word.parse::<u8>().ok() }),
        );
    }
    found
}

/// Each exit code of the program has a name in `exit.rs`, is on both pages, and is asserted by a test.
#[test]
fn every_exit_code_is_documented_and_asserted_by_a_test() {
    let constants =
        EXIT.lines().filter_map(|line| line.strip_prefix("pub(crate) const ")?.split_once(": u8 = "));
    let defined: BTreeMap<&str, u8> =
        constants.map(|(name, value)| (name, value.trim_end_matches(';').parse().unwrap())).collect();
    let mut all: BTreeSet<u8> =
        defined.values().copied().filter(|code| *code != crate::exit::SIGNAL).collect();
    // These have no constant: not acquired with --skip-ok, SIGINT and SIGTERM.
    all.extend([0, 130, 143]);
    let in_help = codes(help::RUN, "EXIT CODE", "  ");
    let in_readme = codes(README, "| code | meaning |", "|");
    for code in &all {
        assert!(in_help.contains(code) && in_readme.contains(code), "{code}: {in_help:?} {in_readme:?}");
    }
    assert_eq!(in_help.difference(&all).collect::<Vec<_>>(), [&0u8; 0], "in the help");
    assert_eq!(in_readme.difference(&all).collect::<Vec<_>>(), [&0u8; 0], "in the README");
    let tests = tests().split_whitespace().collect::<Vec<_>>().join(" ");
    for code in all {
        let asserted = [format!("Some({code})"), format!(", {code}, \""), format!("({code}))")];
        assert!(asserted.iter().any(|text| tests.contains(text)), "no test ends with {code}");
    }
}

#[test]
fn every_variable_of_the_command_is_documented() {
    let sources = [
        include_str!("run/environment.rs"),
        include_str!("store/nested.rs"),
        include_str!("outer_run.rs"),
        include_str!("store.rs"),
        include_str!("args.rs"),
        include_str!("completion/mod.rs"),
    ];
    let sources = sources.join("\n");
    let set: BTreeSet<_> =
        words(&sources, "POLYLOCK_", "_").into_iter().filter(|word| !word.contains("SURELY")).collect();
    let pages = pages();
    let on_page = words(&pages, "POLYLOCK_", "_");
    assert!(set.len() > 8 && set == on_page, "in the program: {set:?}; on the pages: {on_page:?}");
}

/// Returns the names of the tables and sequences in the statements of a store.
fn objects(schema: &str) -> BTreeSet<&str> {
    let created = ["CREATE TABLE IF NOT EXISTS ", "CREATE SEQUENCE IF NOT EXISTS "];
    let after = created.iter().flat_map(|create| schema.split(create).skip(1));
    let words = after.map(|rest| rest.split([' ', '(', ';']).next().unwrap());
    words.map(|word| word.rsplit('.').next().unwrap().trim_matches(['"', '`'])).collect()
}

/// A page must not count or forget tables: an administrator grants rights by it.
#[test]
fn the_tables_of_a_database_are_on_its_page_and_have_rights_in_the_help() {
    let postgres = include_str!("../../polylock-sql/src/postgres/docs.md");
    let mut wrong = Vec::new();
    // An administrator never creates those of SQLite.
    let sqlite = [
        include_str!("../../polylock-sql/src/sqlite/statements/schema.sql"),
        include_str!("../../polylock-sql/src/sqlite/statements/upgrade/4.sql"),
    ];
    for (url, schema, page) in [
        (
            "sqlite:l.db",
            sqlite.concat().replace("{p}", "polylock"),
            include_str!("../../polylock-sql/src/sqlite/docs.md"),
        ),
        ("postgres://h/x", polylock::schema("postgres://h/x").unwrap().unwrap(), postgres),
        (
            "mysql://h/x",
            polylock::schema("mysql://h/x").unwrap().unwrap(),
            include_str!("../../polylock-sql/src/mysql/docs.md"),
        ),
    ] {
        let objects = objects(&schema);
        assert!(objects.len() > 4, "{url}: {objects:?}");
        let tables = page.split_once("\n# Tables\n").unwrap().1;
        wrong.extend(
            objects
                .iter()
                .filter(|name| !tables.contains(&format!("`{name}`")))
                .map(|name| format!("{url}: {name}")),
        );
        if page == postgres {
            let rights = page.split_once("the user then needs").unwrap().1.split_once("\n* ").unwrap().0;
            for name in objects {
                let is_granted =
                    rights.contains(&format!("`{name}`")) && help::SCHEMA.contains(&format!("public.{name}"));
                wrong.extend((!is_granted).then(|| format!("rights on {name}")));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}

/// Returns the keys of a store, from the error about an unknown key.
fn known_keys(url: &str) -> BTreeSet<String> {
    let error = polylock::schema(&format!("{url}?qqqqqqqq=1")).unwrap_err();
    let list = error.problem.split_once("known keys: ").unwrap_or_else(|| panic!("{error}")).1;
    list.split(", ").filter(|key| key.starts_with("polylock.")).map(ToOwned::to_owned).collect()
}

/// The page of each store has exactly the keys that the store reads.
#[test]
fn every_key_of_a_url_is_documented() {
    let common = ["polylock.ttl", "polylock.wait", "polylock.outage", "polylock.deadlock_check"];
    let facade = include_str!("../../polylock/src/lib.rs");
    assert!(common.iter().all(|key| facade.contains(key)));
    let pages = [
        ("sqlite:l.db", include_str!("../../polylock-sql/src/sqlite/docs.md")),
        ("postgres://h/x", include_str!("../../polylock-sql/src/postgres/docs.md")),
        ("mysql://h/x", include_str!("../../polylock-sql/src/mysql/docs.md")),
        ("redis://h", include_str!("../../polylock-redis/src/single/docs.md")),
        ("redis-cluster://a,b,c", include_str!("../../polylock-redis/src/cluster/docs.md")),
        ("redis+sentinel://a,b,c/orders", include_str!("../../polylock-redis/src/sentinel/docs.md")),
        ("redlock://a,b,c", include_str!("../../polylock-redis/src/redlock/docs.md")),
        ("zookeeper://h/x", include_str!("../../polylock-zookeeper/src/docs.md")),
        ("az://locks@account/x", include_str!("../../polylock-azure/src/docs.md")),
        ("polylock+http://h", include_str!("../../polylock-http/src/docs.md")),
    ];
    let mut wrong = Vec::new();
    for (url, page) in pages {
        let known = known_keys(url);
        let documented = words(page, "polylock.", "._");
        for key in
            known.iter().filter(|key| !common.contains(&key.as_str()) && !documented.contains(key.as_str()))
        {
            wrong.push(format!("{url}: {key} is not on the page"));
        }
        // A key in the table of options must be known. The text may also name keys of other stores.
        let table = page.lines().filter(|line| line.starts_with("| `polylock."));
        for key in table.filter_map(|line| line.trim_start_matches("| `").split('`').next()) {
            if !known.contains(key) {
                wrong.push(format!("{url}: {key} is on the page, but unknown"));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}
