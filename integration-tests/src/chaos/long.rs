//! The goals of the long record. It runs in pieces: each run is the one that the records need most, until all goals are met.

use super::{
    configuration::{CONFIGURATIONS, Configuration},
    plan::Density,
    record::Record,
};

/// The number of runs of each configuration, with sections of all kinds.
const RUNS: usize = 5;

/// The numbers of sections, most of which dense runs collect.
const SECTIONS: [(&str, u64); 10] = [
    ("redis", 1_000_000),
    ("postgres", 1_000_000),
    ("sqlite", 100_000),
    ("mariadb", 100_000),
    ("redlock3", 100_000),
    ("redlock5", 100_000),
    ("redlock3_starts", 100_000),
    ("redlock5_starts", 100_000),
    ("zookeeper_ensemble", 100_000),
    // A release is found by polling.
    ("azure", 20_000),
];

/// A run of the long record.
#[derive(Debug, Clone, Copy)]
pub struct Next {
    /// The configuration.
    pub configuration: &'static Configuration,
    /// The processes with many short sections.
    pub density: Density,
    /// The part of its goal that the records have.
    pub share: f64,
}

/// Returns the run that these records need most among the configurations that `is_chosen` selects, or `None` if they meet all goals.
#[must_use]
pub fn next(records: &[Record], is_chosen: impl Fn(&Configuration) -> bool) -> Option<Next> {
    let chosen = CONFIGURATIONS.iter().filter(|it| it.silence.is_none() && is_chosen(it));
    let next = chosen.map(|configuration| {
        let name = configuration.name;
        let own = records.iter().filter(|record| record.is_run_of(name));
        let (runs, sections) =
            own.fold((0, 0), |(runs, sections), record| (runs + 1, sections + record.sections));
        let goal = SECTIONS.iter().find(|(store, _)| *store == name).map_or(0, |(_, sections)| *sections);
        #[expect(clippy::cast_precision_loss, reason = "a share needs no more digits")]
        let (runs_share, share) = (runs as f64 / RUNS as f64, sections as f64 / goal.max(1) as f64);
        Next {
            configuration,
            density: if runs_share < 1.0 { Density::Mixed } else { Density::Dense },
            share: runs_share.min(if goal == 0 { 1.0 } else { share }),
        }
    });
    next.filter(|next| next.share < 1.0).min_by(|a, b| a.share.total_cmp(&b.share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_that_is_farthest_from_its_goal_is_next_until_all_goals_are_met() {
        let run =
            |name: &str, sections| Record { configuration: name.to_owned(), sections, ..Record::default() };
        let all: Vec<Record> =
            CONFIGURATIONS.iter().flat_map(|it| vec![run(it.name, 200_000); RUNS]).collect();
        assert!(next(&all, |_| true).is_none());
        assert!(SECTIONS.iter().all(|(name, _)| CONFIGURATIONS.iter().any(|it| it.name == *name)));

        let is_chosen = |it: &Configuration| ["redis", "sqlite"].contains(&it.name);
        let mut records = vec![run("sqlite", 200_000)];
        let mut step = |sections| {
            let next = next(&records, is_chosen)?;
            records.push(run(next.configuration.name, sections));
            Some((next.configuration.name, next.density == Density::Dense))
        };
        // Redis has no run, and then as many as SQLite.
        assert_eq!(step(200_000), Some(("redis", false)));
        assert_eq!(step(0), Some(("sqlite", false)));
        while let Some((name, is_dense)) = step(10_000) {
            assert!(!is_dense || name == "redis");
        }
        let total =
            |name| records.iter().filter(|it| it.configuration == name).map(|it| it.sections).sum::<u64>();
        assert_eq!(total("redis"), 1_000_000);
        let planted = vec![Record { planted: Some("forgets".to_owned()), ..run("redis", 9) }; RUNS];
        assert_eq!(next(&planted, |it| it.name == "redis").map(|it| it.density), Some(Density::Mixed));
    }
}
