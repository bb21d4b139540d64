//! A report as tables for people, and as JSON.

mod json;
mod table;
mod tables;
pub mod units;

use std::fmt::Write as _;

use serde_json::Value;

use self::table::wrapped;

pub(crate) use self::tables::{beside, contenders};
pub use self::{
    table::{Cell, Table},
    tables::tables,
};
use crate::results::{Outcome, Report, Run};

impl Report {
    /// Returns the report as text: a block for each part, 80 columns wide.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = wrapped(&self.run.headline(), "", "  ");
        let width = self.stores.iter().map(|store| store.label.chars().count()).max().unwrap_or(0);
        for store in &self.stores {
            writeln!(text, "\n{:width$}  {}", store.label, store.store).ok();
            let indent = " ".repeat(width + 2);
            text += &wrapped(&format!("raw: {}", store.raw_text()), &indent, &indent);
        }
        for table in self.tables() {
            text += &format!("\n{}", table.text());
        }
        text + "\n" + &wrapped(&self.run.summary(), "", "  ")
    }

    /// Returns the report as a page of Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "# polylock bench\n\n{}\n\n| store | URL | raw driver |\n|---|---|---|\n",
            self.run.headline()
        );
        for store in &self.stores {
            writeln!(text, "| {} | `{}` | {} |", store.label, store.store, store.raw_text()).ok();
        }
        for table in self.tables() {
            text += &format!("\n{}", table.markdown());
        }
        text + &format!("\n{}\n", self.run.summary())
    }

    fn tables(&self) -> impl Iterator<Item = Table> {
        tables(self).into_iter().flat_map(|(_, tables)| tables)
    }

    /// Returns the report as one JSON document. `polylock bench --help` documents its keys.
    #[must_use]
    pub fn json(&self) -> Value {
        json::document(self)
    }

    /// Returns an object for each part of each store, with the circumstances of the run in each.
    #[must_use]
    pub fn json_lines(&self) -> Vec<Value> {
        json::lines(self)
    }

    /// Returns true if a part has failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        let outcomes = self.stores.iter().flat_map(|store| &store.parts);
        outcomes.into_iter().any(|(_, outcome)| matches!(outcome, Outcome::Failed(_)))
    }
}

impl Run {
    /// Returns the version, the date and the machine, in one line.
    #[must_use]
    pub fn headline(&self) -> String {
        let commit = self.commit.as_ref().map_or_else(String::new, |commit| format!(" ({commit})"));
        format!("polylock {}{commit}, {}, {}", self.version, self.date, self.machine)
    }

    /// Returns the duration and the settings, in one line.
    #[must_use]
    pub fn summary(&self) -> String {
        let settings = &self.settings;
        let ended = self.ended_by.as_ref().map_or_else(String::new, |reason| format!(", ended by {reason}"));
        format!(
            "{:.0} s in all{ended}; {:.0} s for each store, {} contenders, {} waiters, {} locks held, {} kills",
            self.duration.as_secs_f64(),
            settings.time.as_secs_f64(),
            settings.contenders,
            settings.waiters,
            settings.held,
            settings.kills
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        Error, Kills, Machine, Measured, Part, Settings, Times,
        results::{StoreResults, Uncontended},
    };

    /// Returns a report with pairs, kills and a failure.
    pub(crate) fn example() -> Report {
        let ms = Duration::from_millis;
        let times = |millis: [u64; 3]| millis.into_iter().map(ms).collect::<Times>();
        let measured = |measured| Outcome::Measured(Box::new(measured));
        let pairs = Uncontended { polylock: times([1, 2, 3]), raw: Some(times([1, 1, 3])) };
        let kills = Kills { ttl: ms(1500), times: vec![ms(1000), ms(1200), ms(1400)] };
        let parts = vec![
            (Part::Uncontended, measured(Measured::Uncontended(pairs))),
            (Part::HandOver, Outcome::Failed(Error::raw("gone"))),
            (Part::Kill, measured(Measured::Kill(kills))),
        ];
        let store = StoreResults {
            label: "redis".to_owned(),
            backend: "redis",
            store: "redis://h".to_owned(),
            raw: Ok("SET NX PX"),
            parts,
        };
        let settings =
            Settings { parts: vec![Part::Uncontended, Part::HandOver, Part::Kill], ..Settings::default() };
        let run = Run {
            version: "1.2.3".to_owned(),
            commit: None,
            date: "2026-01-01T00:00:00Z".to_owned(),
            machine: Machine::current(),
            settings,
            duration: ms(2500),
            ended_by: None,
        };
        Report { run, stores: vec![store] }
    }

    #[test]
    fn a_text_has_80_columns_and_all_parts() {
        let text = example().text();
        for line in [
            "  redis  2.00 ms  3.00 ms  1.00 ms  3.00 ms     2.00 x",
            "  redis      3  1.50 s    1.00 s  1.20 s   1.40 s",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(text.contains("redis: failed: the raw driver has failed: gone."), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn json_has_microseconds_and_null_for_missing_numbers() {
        let report = example();
        let document = report.json();
        let parts = &document["stores"][0]["parts"];
        let ratio = parts[0]["numbers"]["ratio"].as_f64().unwrap();
        assert!((ratio - 2.0).abs() < 0.01, "{ratio}");
        assert_eq!(parts[0]["numbers"]["pair"]["count"], 3);
        assert_eq!((&parts[1]["outcome"], &parts[1]["numbers"]), (&"failed".into(), &Value::Null));
        assert_eq!(parts[2]["numbers"]["free_after_us"][2], 1_400_000.0);
        let lines = report.json_lines();
        assert_eq!(
            (lines.len(), &lines[2]["part"], &lines[2]["store"]),
            (3, &"kill".into(), &"redis://h".into())
        );
        assert!(report.has_failed());
    }
}
