//! What was measured: tables for people, and the same values as JSON.

use std::{fs, path::Path};

pub(crate) use polylock_bench::report::{Cell, Table};
use serde_json::{Map, Value};

use crate::verdict::Verdict;

/// All tables.
#[derive(Debug, Default)]
pub(crate) struct Report {
    tables: Vec<Table>,
    goals: Vec<Verdict>,
}

impl Report {
    /// Begins a table, and prints its head.
    pub(crate) fn begin(&mut self, name: &'static str, title: &str, columns: &[&'static str]) {
        let table = Table::new(name, title, columns);
        print!("\n{}", table.markdown_head());
        self.tables.push(table);
    }

    /// Adds a row to the table that was begun last, and prints it.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        print!("{}", Table::markdown_row(&cells));
        self.tables.last_mut().unwrap().add(cells);
    }

    /// The number in `column` of the row whose first cells have these texts.
    pub(crate) fn number(&self, table: &str, row: &[&str], column: &str) -> Option<f64> {
        self.tables.iter().find(|known| known.name == table)?.number(row, column)
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
            all.insert(table.name.to_owned(), table.json());
        }
        all.insert("goals".to_owned(), self.goals.iter().map(Verdict::json).collect());
        fs::write(file, format!("{:#}\n", Value::Object(all))).unwrap();
    }
}
