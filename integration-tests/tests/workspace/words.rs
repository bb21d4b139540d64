//! Comments and documentation use plain sentences and the terms of `docs/glossary.md`: a few habits that hide the subject of a sentence
//! are rare in each crate.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use polylock_integration_tests::cargo::workspace;

/// Pronouns in place of the actor: the holder, the waiter, the caller.
const PRONOUNS: [&str; 4] = ["who", "whom", "whose", "whoever"];
/// Verbs of people for programs that receive, return or send.
const HUMAN: [&str; 7] = ["told", "tells", "hears", "heard", "news", "borne", "asks"];
/// Sentences that begin with a clause instead of the subject.
const STARTS: [&str; 5] = ["What", "Whether", "How", "Where", "Why"];

/// The most of each, in 10,000 words or 1,000 sentences.
const LIMITS: [(&str, usize, usize); 3] =
    [("pronouns", 6, 10_000), ("human verbs", 8, 10_000), ("clauses at the start", 20, 1_000)];

/// What was counted in some texts.
#[derive(Debug, Default)]
struct Counts {
    words: usize,
    sentences: usize,
    /// In the order of [`LIMITS`].
    found: [Vec<String>; 3],
}

impl Counts {
    fn add(&mut self, location: &str, text: &str) {
        let is_word = |word: &&str| word.chars().any(char::is_alphabetic);
        let words = || text.split(|c: char| !c.is_alphabetic() && c != '\'').filter(is_word);
        self.words += words().count();
        for (habit, list) in [&PRONOUNS[..], &HUMAN[..]].into_iter().enumerate() {
            let hits = words().filter(|word| list.contains(&&*word.to_lowercase()));
            self.found[habit].extend(hits.map(|word| format!("{location}: `{word}` in: {text}")));
        }
        for sentence in text.split_inclusive([':', '.', '!', '?']).flat_map(|part| part.split(" | ")) {
            let sentence = sentence.trim_start_matches(|c: char| !c.is_alphanumeric());
            if let Some(first) =
                sentence.split(|c: char| !c.is_alphabetic()).next().filter(|word| !word.is_empty())
            {
                self.sentences += 1;
                if STARTS.contains(&first) {
                    self.found[2].push(format!("{location}: {sentence}"));
                }
            }
        }
    }

    /// The habits that are too frequent, with their locations.
    fn excess(&self) -> Vec<String> {
        let mut excess = Vec::new();
        for ((habit, most, of), found) in LIMITS.into_iter().zip(&self.found) {
            let all = if of == 1_000 { self.sentences } else { self.words };
            if found.len() * of > most * all {
                excess.push(format!(
                    "{} {habit} in {all}, {most} in {of} at most:\n{}",
                    found.len(),
                    found.join("\n")
                ));
            }
        }
        excess
    }
}

/// The paragraphs of prose in a file, with the numbers of their first lines; code in backticks is left out.
fn paragraphs(path: &Path, text: &str) -> Vec<(usize, String)> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let prefixes: &[&str] = match extension {
        "rs" => &["//!", "///", "//"],
        "sql" | "lua" => &["--"],
        "md" => &[""],
        _ => return Vec::new(),
    };
    let (mut found, mut is_code): (Vec<(usize, String)>, bool) = (Vec::new(), false);
    let mut continues = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let prose =
            prefixes.iter().find_map(|prefix| line.strip_prefix(prefix)).map(str::trim).filter(|_| {
                let is_fence =
                    prefixes.iter().any(|prefix| line.trim_start_matches(prefix).trim().starts_with("```"));
                is_code ^= is_fence;
                !is_code && !is_fence
            });
        let prose = prose.filter(|prose| !prose.is_empty() && !prose.starts_with('#'));
        match (prose, found.last_mut()) {
            (Some(prose), Some((_, last))) if continues && !prose.starts_with('|') => {
                last.push(' ');
                last.push_str(prose);
            }
            (Some(prose), _) => found.push((number + 1, prose.to_owned())),
            (None, _) => {}
        }
        continues = prose.is_some_and(|prose| !prose.starts_with('|'));
    }
    for (_, text) in &mut found {
        *text = text.split('`').step_by(2).collect::<Vec<_>>().join("X");
    }
    found
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

#[test]
fn every_crate_uses_plain_sentences() {
    let crates = workspace().join("crates");
    let (mut all, mut paths) = (BTreeMap::<String, Counts>::new(), Vec::new());
    files(&crates, &mut paths);
    for path in paths {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let inside = path.strip_prefix(&crates).unwrap();
        let name = inside.iter().next().unwrap().to_string_lossy().into_owned();
        let counts = all.entry(name).or_default();
        for (line, text) in paragraphs(&path, &text) {
            counts.add(&format!("crates/{}:{line}", inside.display()), &text);
        }
    }
    assert!(all.len() >= 8, "{:?}", all.keys());
    for (name, counts) in &all {
        println!("{name}: {} words, {:?}", counts.words, counts.found.each_ref().map(Vec::len));
    }
    let excess: Vec<String> = all.values().flat_map(Counts::excess).collect();
    assert!(excess.is_empty(), "{}", excess.join("\n\n"));
}

#[test]
fn each_habit_is_found() {
    let counted = |line: &str| {
        let mut counts = Counts::default();
        let text =
            format!("/// {line}\nfn f() {{}}\n// ```\n// Whose code.\n// ```\n/// Returns `who` is told.\n");
        for (number, text) in paragraphs(Path::new("a.rs"), &text) {
            counts.add(&number.to_string(), &text);
        }
        counts.found.map(|found| found.len())
    };
    assert_eq!(counted("The releaser notifies the next waiter."), [0, 1, 0]);
    assert_eq!(counted("Who leaves rings."), [1, 1, 0]);
    assert_eq!(counted("The server tells the client."), [0, 2, 0]);
    assert_eq!(counted("A lock. What a claim found."), [0, 1, 1]);
}
