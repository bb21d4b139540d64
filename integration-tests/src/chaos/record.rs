//! The result of a run, as one line of JSON.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, OpenOptions},
    io::{self, Write},
    path::Path,
    process::Command,
    str::FromStr,
    sync::LazyLock,
};

use serde_json::{Value, json};

use crate::{cargo::workspace, clock};

/// The result of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Record {
    /// The name of the configuration.
    pub configuration: String,
    /// The name of the [peer](super::peers), if it is a run of one.
    pub peer: Option<String>,
    /// The name of the planted bug, if there is one.
    pub planted: Option<String>,
    /// The commit of the code; with a `+` if files were changed.
    pub commit: String,
    /// The day, as `YYYY-MM-DD`.
    pub date: String,
    /// The seed; of a search in the simulation, the first one.
    pub seed: u64,
    /// The number of runs of a search in the simulation.
    pub runs: u64,
    /// The number of sections.
    pub sections: u64,
    /// The numbers of faults, by kind.
    pub faults: BTreeMap<String, u64>,
    /// The numbers of violations, by kind.
    pub violations: BTreeMap<String, u64>,
    /// The times in seconds after which locks of killed clients of a peer were granted to others.
    pub freed: Vec<f64>,
    /// The length of the run in seconds, without its begin and end.
    pub seconds: f64,
    /// The time of the first violation, in seconds since the begin.
    pub detected: Option<f64>,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { configuration, peer, planted, commit, date, seed, .. } = self;
        let tenths = |seconds: f64| (seconds * 10.0).round() / 10.0;
        let mut line = json!({
            "configuration": configuration,
            "planted": planted,
            "commit": commit,
            "date": date,
            // A JSON number is not exact in all programs.
            "seed": seed.to_string(),
            "sections": self.sections,
            "faults": self.faults,
            "violations": self.violations,
            "seconds": tenths(self.seconds),
            "detected": self.detected.map(tenths),
        });
        if self.runs > 0 {
            line["runs"] = json!(self.runs);
        }
        if peer.is_some() {
            line["peer"] = json!(peer);
            line["freed"] = self.freed.iter().copied().map(tenths).collect();
        }
        write!(f, "{line}")
    }
}

impl FromStr for Record {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
        let bad = |key: &str| format!("{key}: {line}");
        let text = |key: &str| value[key].as_str().map(str::to_owned).ok_or_else(|| bad(key));
        let counts = |key: &str| -> Result<BTreeMap<String, u64>, String> {
            let entries = value[key].as_object().ok_or_else(|| bad(key))?.iter();
            entries
                .map(|(kind, count)| Some((kind.clone(), count.as_u64()?)))
                .collect::<Option<_>>()
                .ok_or_else(|| bad(key))
        };
        Ok(Self {
            configuration: text("configuration")?,
            peer: value["peer"].as_str().map(str::to_owned),
            planted: value["planted"].as_str().map(str::to_owned),
            commit: text("commit")?,
            date: text("date")?,
            seed: text("seed")?.parse().map_err(|_| bad("seed"))?,
            runs: value["runs"].as_u64().unwrap_or(0),
            sections: value["sections"].as_u64().ok_or_else(|| bad("sections"))?,
            faults: counts("faults")?,
            violations: counts("violations")?,
            freed: value["freed"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect(),
            seconds: value["seconds"].as_f64().ok_or_else(|| bad("seconds"))?,
            detected: value["detected"].as_f64(),
        })
    }
}

/// Reads the records in the files `*.jsonl` of a directory, in the order of the names of the files.
///
/// # Errors
/// If a file can't be read, or has a line that is no record.
pub fn read_all(directory: &Path) -> io::Result<Vec<Record>> {
    let files = fs::read_dir(directory)?.map(|file| Ok(file?.path())).collect::<io::Result<Vec<_>>>()?;
    let mut files: Vec<_> =
        files.into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "jsonl")).collect();
    files.sort();
    let mut records = Vec::new();
    for path in files {
        for line in fs::read_to_string(&path)?.lines() {
            let record = line.parse().map_err(|why| io::Error::other(format!("{}: {why}", path.display())));
            records.push(record?);
        }
    }
    Ok(records)
}

/// Appends a record to a file.
///
/// # Errors
/// If the file can't be written.
pub fn append(path: &Path, record: &Record) -> io::Result<()> {
    writeln!(OpenOptions::new().create(true).append(true).open(path)?, "{record}")
}

/// Returns the commit at the time of the first call, with a `+` if files were changed.
#[must_use]
pub fn commit() -> String {
    static COMMIT: LazyLock<String> = LazyLock::new(current_commit);
    COMMIT.clone()
}

fn current_commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(workspace()).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=9", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    // The records grow from run to run, and the page with them.
    let code =
        ["status", "--porcelain", "--untracked-files=no", "--", ".", ":!integration-tests/record", ":!docs"];
    let is_changed = git(&code).is_some_and(|text| !text.is_empty());
    format!("{commit}{}", if is_changed { "+" } else { "" })
}

/// Returns today's date, in UTC.
#[must_use]
pub fn today() -> String {
    let now = humantime::format_rfc3339_seconds(clock::time_of_day()).to_string();
    now.split('T').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_parses_to_its_record() {
        let record = Record {
            configuration: "redis".to_owned(),
            peer: Some("kazoo".to_owned()),
            planted: Some("forgets".to_owned()),
            commit: "abc".to_owned(),
            date: "2026-11-23".to_owned(),
            seed: u64::MAX,
            runs: 3,
            sections: 7,
            faults: [("cut".to_owned(), 3)].into(),
            violations: [("overlap".to_owned(), 1)].into(),
            freed: vec![2.5, 3.0],
            seconds: 5.5,
            detected: Some(1.2),
        };
        assert_eq!(record.to_string().parse(), Ok(record));
        assert!("{}".parse::<Record>().is_err());
    }
}
