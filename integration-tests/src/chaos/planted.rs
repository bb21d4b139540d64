//! Bugs that are planted at run time: in the clients, in the memory of a store, or in the routines of a database.

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use polylock_core::{Clock, Moment, SystemClock, clock::Sleep, url::StoreUrl};
use polylock_sql::{mysql, postgres};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};

use super::{configuration::Configuration, plan::Kind};
use crate::clock::now;

/// A bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// It is in the clients.
    Client(ClientBug),
    /// The store forgets all its entries every second.
    Forgets,
    /// It is in a routine of a database.
    Routine(&'static RoutineBug),
    /// It is in the code of the program `worker`, under this name.
    Worker(&'static str),
}

/// A bug in the clients of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientBug {
    /// The clock of the deadlines stands still while the process is stopped.
    StoppedClock,
    /// A loss is noticed two seconds late.
    SilentLoss,
    /// A break does not wait for the holder.
    ForcedBreaks,
}

/// A bug in a routine.
#[derive(Debug, PartialEq, Eq)]
pub struct RoutineBug {
    /// Its name as an argument and in the record.
    pub name: &'static str,
    /// Its meaning, for the page.
    pub meaning: &'static str,
    /// The scheme of the database.
    pub scheme: &'static str,
    /// The beginning of the name of the routine, without its prefix.
    pub routine: &'static str,
    /// A part of the routine, and its replacement.
    pub change: (&'static str, &'static str),
}

/// The bugs in routines.
static ROUTINES: [RoutineBug; 8] = [
    RoutineBug {
        name: "late-claim",
        meaning: "a claim is executed although its client has abandoned it",
        scheme: "postgres",
        routine: "_claim_",
        change: ("IF v_now > a_expiry THEN", "IF FALSE THEN"),
    },
    RoutineBug {
        name: "late-claim",
        meaning: "a claim is executed although its client has abandoned it",
        scheme: "mysql",
        routine: "_claim_",
        change: ("IF v_now > a_expiry THEN", "IF FALSE THEN"),
    },
    RoutineBug {
        name: "foreign-release",
        meaning: "a release removes the hold of another request",
        scheme: "postgres",
        routine: "_release_",
        change: ("slot IN ('', a_request) AND request = a_request;", "slot IN ('', a_request);"),
    },
    RoutineBug {
        name: "foreign-release",
        meaning: "a release removes the hold of another request",
        scheme: "mysql",
        routine: "_release_",
        change: ("AND slot = a_slot AND request = a_request;", "AND slot = a_slot;"),
    },
    RoutineBug {
        name: "last-first",
        meaning: "the last waiter is granted the lock first",
        scheme: "postgres",
        routine: "_settle_",
        change: (
            "AND seq > v_seq ORDER BY seq LIMIT 1",
            "AND (v_seq = 0 OR seq < v_seq) ORDER BY seq DESC LIMIT 1",
        ),
    },
    RoutineBug {
        name: "last-first",
        meaning: "the last waiter is granted the lock first",
        scheme: "mysql",
        routine: "_release_",
        change: (
            "AND seq > v_seq ORDER BY seq LIMIT 1",
            "AND (v_seq = 0 OR seq < v_seq) ORDER BY seq DESC LIMIT 1",
        ),
    },
    RoutineBug {
        name: "reader-beside-writer",
        meaning: "a lock is handed over although a holder conflicts",
        scheme: "postgres",
        routine: "_settle_",
        change: ("IF w.mode & v_ahead = 0 THEN", "IF w.mode & v_ahead = 0 OR w.slot <> '' THEN"),
    },
    RoutineBug {
        name: "reader-beside-writer",
        meaning: "a claim does not check the shared holds",
        scheme: "mysql",
        routine: "_claim_",
        change: ("_holds WHERE name = a_name)", "_holds WHERE name = a_name AND slot = x'')"),
    },
];

/// A bug that the program `mutants` plants in a copy of the code, in which it builds the program `worker`.
#[derive(Debug)]
pub struct CodeBug {
    /// Its name as an argument and in the record.
    pub name: &'static str,
    meaning: &'static str,
    /// The name of the configuration that has to find it.
    pub configuration: &'static str,
    /// The name of the change of the code.
    pub mutant: &'static str,
}

/// The bugs in the code.
pub static CODE: [CodeBug; 6] = [
    CodeBug {
        name: "claims-first",
        meaning: "claims go before releases, and releases before renewals",
        configuration: "sqlite",
        mutant: "claims before releases, and releases before renewals",
    },
    CodeBug {
        name: "no-fallback",
        meaning: "without notifications, no hand-over is found in the tables",
        configuration: "postgres_listen_off",
        mutant: "locks that were handed over are looked up by texts, in PostgreSQL",
    },
    CodeBug {
        name: "kill-by-number",
        meaning: "a session is ended by the number of its connection, which another one has after a restart",
        configuration: "mariadb_pessimistic_cut",
        mutant: "pessimistic: a session of MySQL is identified by its connection's number",
    },
    CodeBug {
        name: "trusted-start",
        meaning: "the votes of a server with its data count at once after a restart",
        configuration: "redlock3_starts",
        mutant: "Redlock: a server with its data counts at once after a restart",
    },
    CodeBug {
        name: "standby-is-final",
        meaning: "a request ends when a standby refuses its write, instead of waiting for the promotion",
        configuration: "postgres_standby",
        mutant: "PostgreSQL: a write to a replica is a lack of rights",
    },
    CodeBug {
        name: "impatient-try",
        meaning: "a try with an outage of its own ends with the first error",
        configuration: "redis_replica",
        mutant: "a try with an outage of its own fails with the first error",
    },
];

impl Bug {
    /// Returns the bugs that can be planted in this store.
    pub fn of(configuration: &'static Configuration) -> impl Iterator<Item = Self> {
        let clients = ClientBug::ALL.into_iter().map(Self::Client);
        // Locks of the pessimistic strategy are not in tables, and the clients of these Redlock servers detect that they have forgotten.
        let is_immune = configuration.name.contains("pessimistic")
            || configuration.name == "redlock5"
            || configuration.faults.contains(&Kind::ChangedStart);
        let forgets = (!is_immune).then_some(Self::Forgets);
        let routines = ROUTINES.iter().filter(|bug| bug.scheme == configuration.scheme()).map(Self::Routine);
        clients.chain(forgets).chain(routines)
    }

    /// Returns the bugs in the code that this store has to find.
    pub fn in_code_of(configuration: &'static Configuration) -> impl Iterator<Item = Self> {
        let bugs = CODE.iter().filter(|bug| bug.configuration == configuration.name);
        bugs.map(|bug| Self::Worker(bug.name))
    }

    /// Returns its name as an argument and in the record.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client(bug) => bug.name(),
            Self::Forgets => "forgets",
            Self::Routine(bug) => bug.name,
            Self::Worker(name) => name,
        }
    }

    /// Returns its meaning, for the page.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Client(ClientBug::StoppedClock) => {
                "the clock of the deadlines stands still while the process is stopped"
            }
            Self::Client(ClientBug::SilentLoss) => "a loss is noticed two seconds late",
            Self::Client(ClientBug::ForcedBreaks) => "a break does not wait for the holder",
            Self::Forgets => "the store forgets all its entries every second",
            Self::Routine(bug) => bug.meaning,
            Self::Worker(name) => match CODE.iter().find(|bug| bug.name == name) {
                Some(bug) => bug.meaning,
                None => "in the code of the library",
            },
        }
    }
}

impl ClientBug {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::StoppedClock, Self::SilentLoss, Self::ForcedBreaks];

    /// Returns its name as an argument.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::StoppedClock => "stopped-clock",
            Self::SilentLoss => "silent-loss",
            Self::ForcedBreaks => "forced-breaks",
        }
    }

    /// Returns the bug with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bug| bug.name() == name)
    }

    /// Returns the clock of the deadlines, if it is not the machine's.
    #[must_use]
    pub fn clock(self) -> Option<Arc<dyn Clock>> {
        (self == Self::StoppedClock).then(|| Arc::new(StoppedClock) as Arc<dyn Clock>)
    }
}

/// A clock that stands still while the process is stopped.
#[derive(Debug)]
struct StoppedClock;

/// The time of the clock is kept by a thread, in steps of this length.
const STEP: Duration = Duration::from_millis(2);

impl Clock for StoppedClock {
    fn now(&self) -> Moment {
        static TIME: LazyLock<Arc<AtomicU64>> = LazyLock::new(|| {
            let time = Arc::new(AtomicU64::new(now().as_nanos()));
            let kept = time.clone();
            thread::spawn(move || {
                let mut last = now();
                loop {
                    thread::park_timeout(STEP);
                    let step = now().since(last).min(10 * STEP);
                    kept.fetch_add(u64::try_from(step.as_nanos()).unwrap_or(0), Relaxed);
                    last = now();
                }
            });
            time
        });
        Moment::from_nanos(TIME.load(Relaxed))
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        Box::pin(async move {
            while StoppedClock.now() < at {
                let left = at.since(StoppedClock.now()).min(10 * STEP);
                SystemClock.sleep_until(SystemClock.now() + left).await;
            }
        })
    }
}

impl RoutineBug {
    /// Replaces the routine in the database at `url`, in which the store was opened.
    ///
    /// # Errors
    /// The errors of the database.
    ///
    /// # Panics
    /// If the routine has changed, so that nothing can be planted.
    pub async fn plant(&self, url: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let (server, _) = url.split_once('?').unwrap_or((url, ""));
        let url = StoreUrl::parse(url)?;
        if self.scheme == "postgres" {
            let schema = postgres::schema(&postgres::Config::from_url(&url, &mut url.keys())?)?;
            let planted = self.changed(schema.split("CREATE OR REPLACE FUNCTION"));
            let sql = format!("CREATE OR REPLACE FUNCTION{planted}");
            PgConnection::connect(server).await?.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
            return Ok(());
        }
        let statements = mysql::schema_statements(&mysql::Config::from_url(&url, &mut url.keys())?)?;
        let planted = self.changed(statements.iter().map(String::as_str));
        let (_, body) = planted.rsplit_once("IF NOT EXISTS */ ").unwrap_or(("", &planted));
        let (name, _) = body.split_once('(').unwrap_or((body, ""));
        let mut connection = MySqlConnection::connect(server).await?;
        connection.execute(sqlx::raw_sql(AssertSqlSafe(format!("DROP PROCEDURE {name}")))).await?;
        connection.execute(sqlx::raw_sql(AssertSqlSafe(format!("CREATE PROCEDURE {body}")))).await?;
        Ok(())
    }

    /// Returns the part with the routine, changed.
    fn changed<'p>(&self, mut parts: impl Iterator<Item = &'p str>) -> String {
        let (from, to) = self.change;
        let is_defined = |part: &&str| {
            let head = part.split_once('(').map_or("", |(head, _)| head);
            head.contains(self.routine) && part.contains(from)
        };
        let part = parts.find(is_defined);
        part.unwrap_or_else(|| panic!("{}: nothing can be planted in {}", self.name, self.routine))
            .replace(from, to)
    }
}
