//! The report of a check, as text and as JSON.

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::{args::Format, exit::Failure, output::Output};

/// The result of one row, in the order of severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    Skipped,
    Ok,
    Warning,
    Failure,
}

impl Outcome {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Skipped => "skipped",
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failure => "failure",
        }
    }

    const fn style(self) -> Style {
        match self {
            Self::Skipped => Style::new().dimmed(),
            Self::Ok => AnsiColor::Green.on_default(),
            Self::Warning => AnsiColor::Yellow.on_default().bold(),
            Self::Failure => AnsiColor::Red.on_default().bold(),
        }
    }
}

/// One observation.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub(super) part: &'static str,
    pub(super) name: String,
    pub(super) outcome: Outcome,
    pub(super) value: String,
    pub(super) advice: Option<String>,
}

impl Row {
    pub(super) fn new(
        part: &'static str,
        name: impl Into<String>,
        outcome: Outcome,
        value: impl Into<String>,
    ) -> Self {
        Self { part, name: name.into(), outcome, value: value.into(), advice: None }
    }

    pub(super) fn ok(part: &'static str, name: impl Into<String>, value: impl Into<String>) -> Self {
        Self::new(part, name, Outcome::Ok, value)
    }

    pub(super) fn skipped(part: &'static str, name: impl Into<String>, value: impl Into<String>) -> Self {
        Self::new(part, name, Outcome::Skipped, value)
    }

    /// Returns the row as a warning with advice if `is_warning`.
    pub(super) fn warn_if(self, is_warning: bool, advice: &str) -> Self {
        if is_warning {
            Self { outcome: Outcome::Warning, advice: Some(advice.to_owned()), ..self }
        } else {
            self
        }
    }
}

/// A report; documented in `polylock check --help`.
#[derive(Debug)]
pub(super) struct Report {
    /// The store without secrets.
    pub(super) store: String,
    pub(super) backend: &'static str,
    pub(super) seed: u64,
    pub(super) duration_ms: u64,
    pub(super) rows: Vec<Row>,
}

impl Report {
    pub(super) fn new(store: String, seed: u64) -> Self {
        Self { store, backend: "", seed, duration_ms: 0, rows: Vec::new() }
    }

    /// Returns the worst outcome.
    pub(super) fn verdict(&self) -> Outcome {
        self.rows.iter().map(|row| row.outcome).max().unwrap_or(Outcome::Ok).max(Outcome::Ok)
    }

    /// Returns a line about the whole check.
    pub(super) fn summary(&self) -> String {
        let count = |outcome| self.rows.iter().filter(|row| row.outcome == outcome).count();
        format!(
            "{}: {} ok, {} warnings, {} failures, {} skipped, in {:.1} s, seed {}",
            self.verdict().word(),
            count(Outcome::Ok),
            count(Outcome::Warning),
            count(Outcome::Failure),
            count(Outcome::Skipped),
            std::time::Duration::from_millis(self.duration_ms).as_secs_f64(),
            self.seed
        )
    }

    pub(super) fn print(&self, output: &Output) -> Result<(), Failure> {
        let json = |row: &Row| serde_json::to_string(row).unwrap_or_default();
        output.data(&match output.format {
            Format::Text | Format::Markdown => self.text(),
            Format::Jsonl => self.rows.iter().map(|row| json(row) + "\n").collect(),
            Format::Json => format!(
                "{}\n",
                serde_json::json!({
                    "store": self.store, "backend": self.backend, "version": env!("CARGO_PKG_VERSION"),
                    "seed": self.seed, "duration_ms": self.duration_ms, "verdict": self.verdict(), "rows": self.rows,
                })
            ),
        })
    }

    fn text(&self) -> String {
        let width = self.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        let mut text = format!("{}\n", self.store);
        let mut part = "";
        for row in &self.rows {
            if row.part != part {
                part = row.part;
                text += &format!("\n{part}\n");
            }
            let (style, word) = (row.outcome.style(), row.outcome.word());
            text += &format!("  {:width$}  {style}{word:7}{style:#}  {}\n", row.name, row.value);
            if let Some(advice) = &row.advice {
                text += &format!("  {:width$}           {advice}\n", "");
            }
        }
        let style = self.verdict().style();
        text + &format!("\n{style}{}{style:#}\n", self.summary())
    }
}
