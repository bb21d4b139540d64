//! What was measured: tables for people, and the same values as JSON.

use std::{fs, path::Path, time::Duration};

use serde_json::{Map, Value, json};

use crate::goals::Verdict;

/// One value of a row: its text, and its number if it has one. Times are in microseconds.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    value: Value,
}

impl Cell {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { value: json!(text), text }
    }

    pub(crate) fn time(time: Duration) -> Self {
        Self { text: format!("{time:.1?}"), value: json!(micros(time)) }
    }

    pub(crate) fn ratio(ratio: f64) -> Self {
        Self { text: format!("{ratio:.2} x"), value: json!(ratio) }
    }

    /// With so many digits after the point.
    pub(crate) fn number(number: f64, digits: usize) -> Self {
        Self { text: format!("{number:.digits$}"), value: json!(number) }
    }

    pub(crate) fn none() -> Self {
        Self { text: "-".to_owned(), value: Value::Null }
    }
}

impl From<Option<Self>> for Cell {
    fn from(cell: Option<Self>) -> Self {
        cell.unwrap_or_else(Self::none)
    }
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// All tables.
#[derive(Debug, Default)]
pub(crate) struct Report {
    tables: Vec<Table>,
    goals: Vec<Verdict>,
}

#[derive(Debug)]
struct Table {
    name: &'static str,
    columns: &'static [&'static str],
    rows: Vec<Vec<Cell>>,
}

impl Report {
    /// Begins a table, and prints its head.
    pub(crate) fn begin(&mut self, name: &'static str, title: &str, columns: &'static [&'static str]) {
        println!("\n## {title}\n");
        println!("| {} |", columns.join(" | "));
        println!("{}|", "|---".repeat(columns.len()));
        self.tables.push(Table { name, columns, rows: Vec::new() });
    }

    /// Adds a row to the table that was begun last, and prints it.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        let table = self.tables.last_mut().unwrap();
        assert_eq!(cells.len(), table.columns.len(), "{}", table.name);
        println!("| {} |", cells.iter().map(|cell| cell.text.as_str()).collect::<Vec<_>>().join(" | "));
        table.rows.push(cells);
    }

    /// The number in `column` of the row whose first cells have these texts.
    pub(crate) fn number(&self, table: &str, row: &[&str], column: &str) -> Option<f64> {
        let table = self.tables.iter().find(|known| known.name == table)?;
        let at = table.columns.iter().position(|known| *known == column)?;
        let is_it = |cells: &&Vec<Cell>| cells.iter().zip(row).all(|(cell, text)| cell.text == *text);
        table.rows.iter().find(is_it)?[at].value.as_f64()
    }

    /// Prints which goals were met.
    pub(crate) fn judge(&mut self, goals: Vec<Verdict>) {
        println!("\n## Goals\n\n| goal | bound | measured | |\n|---|---|---|---|");
        goals.iter().for_each(|goal| println!("{goal}"));
        self.goals = goals;
    }

    /// Writes everything as JSON: a list of rows for each table, and the goals.
    pub(crate) fn write(&self, file: &Path) {
        let mut all = Map::new();
        for table in &self.tables {
            let row = |cells: &Vec<Cell>| {
                let values = table.columns.iter().zip(cells);
                Value::Object(
                    values.map(|(column, cell)| ((*column).to_owned(), cell.value.clone())).collect(),
                )
            };
            all.insert(table.name.to_owned(), table.rows.iter().map(row).collect());
        }
        all.insert("goals".to_owned(), self.goals.iter().map(Verdict::json).collect());
        fs::write(file, format!("{:#}\n", Value::Object(all))).unwrap();
    }
}
