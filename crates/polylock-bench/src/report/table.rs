//! Tables: text and Markdown for people, and the same values as JSON.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::units;

/// One value of a row: its text, and its value as JSON. Times are in microseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    text: String,
    value: Value,
}

impl Cell {
    /// Creates a text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { value: json!(text), text }
    }

    /// Creates a time.
    #[must_use]
    pub fn time(time: Duration) -> Self {
        Self { text: units::time(time), value: json!(time.as_secs_f64() * 1e6) }
    }

    /// Creates a ratio.
    #[must_use]
    pub fn ratio(ratio: f64) -> Self {
        Self { text: format!("{ratio:.2} x"), value: json!(ratio) }
    }

    /// Creates a number with so many digits after the point.
    #[must_use]
    pub fn number(number: f64, digits: usize) -> Self {
        Self { text: format!("{number:.digits$}"), value: json!(number) }
    }

    /// Creates a count.
    #[must_use]
    pub fn count(count: impl Into<u128>) -> Self {
        let count: u128 = count.into();
        Self { text: units::count(count), value: json!(u64::try_from(count).unwrap_or(u64::MAX)) }
    }

    /// Creates a value that is not known.
    #[must_use]
    pub fn none() -> Self {
        Self { text: "-".to_owned(), value: Value::Null }
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl From<Option<Self>> for Cell {
    fn from(cell: Option<Self>) -> Self {
        cell.unwrap_or_else(Self::none)
    }
}

/// A table.
#[derive(Debug, Clone)]
pub struct Table {
    /// The name of the table in JSON.
    pub name: &'static str,
    /// The title, and a line about what is measured.
    pub title: String,
    /// The names of the columns. The first one is of names, the others are of numbers.
    pub columns: Vec<&'static str>,
    /// The rows.
    pub rows: Vec<Vec<Cell>>,
    /// How to read the table, a sentence each.
    pub notes: Vec<String>,
}

impl Table {
    /// Creates a table without rows.
    #[must_use]
    pub fn new(name: &'static str, title: impl Into<String>, columns: &[&'static str]) -> Self {
        Self { name, title: title.into(), columns: columns.to_vec(), rows: Vec::new(), notes: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If it has not a cell for each column.
    pub fn add(&mut self, cells: Vec<Cell>) {
        assert_eq!(cells.len(), self.columns.len(), "{}", self.name);
        self.rows.push(cells);
    }

    /// Returns the number of columns at the begin that have names only.
    #[must_use]
    pub fn names(&self) -> usize {
        let is_name = |at: &usize| self.rows.iter().all(|row| row[*at].value.is_string());
        (0..self.columns.len()).take_while(is_name).count().max(1)
    }

    /// Returns the number in `column` of the row whose first cells have these texts.
    #[must_use]
    pub fn number(&self, row: &[&str], column: &str) -> Option<f64> {
        let at = self.columns.iter().position(|known| *known == column)?;
        let is_it = |cells: &&Vec<Cell>| cells.iter().zip(row).all(|(cell, text)| cell.text == *text);
        self.rows.iter().find(is_it)?[at].value.as_f64()
    }

    /// Returns the head of the table in Markdown.
    #[must_use]
    pub fn markdown_head(&self) -> String {
        let line = "|---".repeat(self.columns.len());
        format!("## {}\n\n| {} |\n{line}|\n", self.title, self.columns.join(" | "))
    }

    /// Returns a row in Markdown.
    #[must_use]
    pub fn markdown_row(cells: &[Cell]) -> String {
        format!("| {} |\n", cells.iter().map(Cell::as_str).collect::<Vec<_>>().join(" | "))
    }

    /// Returns the table in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let rows: String = self.rows.iter().map(|row| Self::markdown_row(row)).collect();
        let notes: String = self.notes.iter().map(|note| format!("\n{note}\n")).collect();
        let head = if self.rows.is_empty() { format!("## {}\n", self.title) } else { self.markdown_head() };
        head + &rows + &notes
    }

    /// Returns the table as text.
    #[must_use]
    pub fn text(&self) -> String {
        let rows = self.rows.iter().map(|row| row.iter().map(Cell::as_str).collect::<Vec<_>>());
        let all: Vec<Vec<&str>> = [self.columns.clone()].into_iter().chain(rows).collect();
        let width = |at: usize| all.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut text = wrapped(&self.title, "", "  ");
        // A head without rows says nothing.
        for row in all.iter().filter(|_| !self.rows.is_empty()) {
            let mut line = String::new();
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                line +=
                    &if at < self.names() { format!("  {cell:width$}") } else { format!("  {cell:>width$}") };
            }
            text += &format!("{}\n", line.trim_end());
        }
        text + &self.notes.iter().map(|note| wrapped(note, "  ", "  ")).collect::<String>()
    }

    /// Returns the rows as JSON objects.
    #[must_use]
    pub fn json(&self) -> Value {
        let row = |cells: &Vec<Cell>| {
            let values = self.columns.iter().zip(cells);
            let object = values.map(|(column, cell)| ((*column).to_owned(), cell.value.clone()));
            Value::Object(object.collect::<Map<_, _>>())
        };
        self.rows.iter().map(row).collect()
    }
}

/// Returns the text in lines of 80 columns at most, with these indentations of the first and of the other lines.
pub(super) fn wrapped(text: &str, first: &str, others: &str) -> String {
    const WIDTH: usize = 80;
    let (mut lines, mut line) = (String::new(), first.to_owned());
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines += &format!("{line}\n");
            line = others.to_owned();
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line += word;
        is_empty = false;
    }
    lines + &format!("{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new("pairs", "Pairs: a lock", &["store", "p50", "x raw"]);
        table.add(vec![Cell::text("sqlite"), Cell::time(Duration::from_micros(1204)), Cell::ratio(1.5)]);
        table.add(vec![Cell::text("az"), Cell::time(Duration::from_millis(12)), Cell::none()]);
        table.notes.push("x raw: beside the driver.".to_owned());
        table
    }

    #[test]
    fn text_and_markdown() {
        let text = "Pairs: a lock\n  store       p50   x raw\n  sqlite  1.20 ms  1.50 x\n  az      12.0 ms       -\n  x raw: beside the driver.\n";
        assert_eq!(table().text(), text);
        let markdown = "## Pairs: a lock\n\n| store | p50 | x raw |\n|---|---|---|\n| sqlite | 1.20 ms | 1.50 x |\n| az | 12.0 ms | - |\n\nx raw: beside the driver.\n";
        assert_eq!(table().markdown(), markdown);
    }

    #[test]
    fn numbers_are_found_by_row_and_column() {
        let table = table();
        assert_eq!(table.number(&["sqlite"], "x raw"), Some(1.5));
        assert_eq!(table.number(&["sqlite"], "p50"), Some(1204.0));
        assert_eq!((table.number(&["az"], "x raw"), table.number(&["redis"], "p50")), (None, None));
        assert_eq!(table.json()[1], json!({"store": "az", "p50": 12_000.0, "x raw": null}));
    }

    #[test]
    fn long_lines_are_wrapped() {
        let text = wrapped(&"word ".repeat(30), "> ", "  ");
        assert!(text.lines().count() == 2 && text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.starts_with("> word") && text.lines().nth(1).unwrap().starts_with("  word"), "{text}");
    }
}
