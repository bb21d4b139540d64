//! The tables and routines: checks their version, and creates or upgrades them.

use std::collections::BTreeSet;

use polylock_core::{Clock, Operation, Result, SystemClock};
use sqlx::{MySql, mysql::MySqlRow};

use super::{
    config::{Config, database},
    error, pessimistic,
    statements::{self, fill},
};
use crate::engine::{
    columns::Columns,
    server::{
        connection::PooledConnection,
        driver::{ClassifyErrors, ErrorClass},
        literal::{Template, fill_template},
        pool::Server,
        tables::Tables,
    },
    version::{Addition, FoundVersion, SchemaState, Version, with_additions},
};

/// The settings of the session that creates the routines. A routine keeps the `sql_mode` under which it was created: no silent
/// truncation, no other dialect, no other engine. A change of a table waits this long for transactions that use it, then lets
/// other transactions pass and is retried.
const MODE: &str =
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', lock_wait_timeout = 1;";

/// Returns the tables of the strategy of `config`.
fn tables(config: &Config) -> &'static Tables {
    config.common.strategy.choose(&statements::TABLES, &pessimistic::TABLES)
}

/// Returns the names of the tables, without the prefix.
pub(super) fn names(config: &Config) -> BTreeSet<String> {
    tables(config).names()
}

/// Returns the table with a row for each shard, and the number of shards.
fn shard_table(config: &Config) -> (&'static str, i64) {
    config.common.strategy.choose(("gates", 1024), ("tokens", 64))
}

/// Creates the tables and routines that are missing.
pub(super) async fn prepare(
    server: &Server<MySql>,
    config: &Config,
    mut connection: PooledConnection<MySql>,
) -> Result<()> {
    let (other, table) = config.common.strategy.choose(("pessimistic", "rows"), ("lease", "holds"));
    let sent = SystemClock.now();
    let others = server.query_on(&mut connection, &others(config, table)).await?.and_then(|rows| {
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok((row.int(0)?, row.int(1)?.unwrap_or(0)))
    });
    let (others, clock_us) = others.map_err(|error| server.failed(Operation::Connect, error))?;
    server.clock().observe(sent, clock_us);
    if others != Some(0) {
        return Err(config.common.used_by(other).into());
    }
    if is_outdated(server, config, &mut connection).await? {
        create(server, config, connection).await?;
        connection = server.acquire_to_open().await?;
        if is_outdated(server, config, &mut connection).await? {
            return Err(Version::unknown(&config.common.table).into());
        }
    }
    connection.return_to_pool();
    Ok(())
}

/// Returns true if the tables or routines of this program's version are missing or incomplete.
///
/// # Errors
/// [`ConfigError`] if this program must not use the tables.
async fn is_outdated(
    server: &Server<MySql>,
    config: &Config,
    connection: &mut PooledConnection<MySql>,
) -> Result<bool> {
    let (tables, prefix) = (tables(config), &config.common.table);
    let Some(row) = numbers(server, &version(config), connection).await? else { return Ok(true) };
    let [number, oldest, routines] = row;
    let raise = |oldest| raise(config, oldest);
    match tables.known(&config.common).check(prefix, FoundVersion { number, oldest }, raise)? {
        SchemaState::Outdated => return Ok(true),
        SchemaState::Current => {}
        // The tables were emptied, or the program that created them was interrupted.
        SchemaState::Unversioned if can_be_completed(server, config, connection).await? => return Ok(true),
        SchemaState::Unversioned => return Err(Version::unknown(prefix).into()),
    }
    let existing = numbers(server, &shards(config), connection).await?;
    Ok(tables.lack_routines(routines) || existing.is_none_or(|[existing]| existing < shard_table(config).1))
}

/// Returns the numbers in the first row of the reply, or `None` if a table is missing.
async fn numbers<const N: usize>(
    server: &Server<MySql>,
    template: &Template,
    connection: &mut PooledConnection<MySql>,
) -> Result<Option<[i64; N]>> {
    let answer = server.query_on(connection, template).await?;
    if answer.as_ref().is_err_and(|failure| error::number(failure) == Some(error::NO_TABLE)) {
        return Ok(None);
    }
    let read = answer.and_then(|rows| {
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let mut numbers = [0; N];
        for (column, number) in numbers.iter_mut().enumerate() {
            *number = row.int(column)?.unwrap_or(0);
        }
        Ok(numbers)
    });
    read.map(Some).map_err(|failure| server.failed(Operation::Connect, failure))
}

async fn can_be_completed(
    server: &Server<MySql>,
    config: &Config,
    connection: &mut PooledConnection<MySql>,
) -> Result<bool> {
    let columns = server.query_on(connection, &columns(config)).await?.and_then(|rows| {
        let column =
            |row: &MySqlRow| Ok((row.text(0)?.unwrap_or_default(), row.text(1)?.unwrap_or_default()));
        rows.iter().map(column).collect::<Result<Vec<_>, sqlx::Error>>()
    });
    let columns = columns.map_err(|error| server.failed(Operation::Connect, error))?;
    Ok(tables(config).can_be_completed(&config.common, columns))
}

/// Creates the tables and routines, and closes the connection, because its session has another `sql_mode` then.
async fn create(
    server: &Server<MySql>,
    config: &Config,
    mut connection: PooledConnection<MySql>,
) -> Result<()> {
    let deadline = SystemClock.now() + server.timeout;
    for part in &creation(config) {
        loop {
            match server.query_on(&mut connection, part).await? {
                Ok(_) => break,
                // Some versions of MySQL 8.0 do not know `IF NOT EXISTS` here.
                Err(failure) if error::number(&failure) == Some(error::ROUTINE_EXISTS) => break,
                // Another program has added it since this one checked: the rest of this part is still missing.
                Err(failure)
                    if error::number(&failure).is_some_and(error::was_added)
                        && SystemClock.now() < deadline => {}
                // Another program creates them at the same time.
                Err(failure)
                    if MySql::error_class(&failure) == ErrorClass::Contention
                        && SystemClock.now() < deadline => {}
                Err(failure) if error::number(&failure).is_some_and(error::is_refusal) => {
                    return Err(server.missing_tables(&script(config), &failure));
                }
                Err(failure) => return Err(server.failed(Operation::Connect, failure)),
            }
        }
    }
    Ok(())
}

/// Drops the tables and routines of `config`.
pub(super) async fn drop_all(server: &Server<MySql>, config: &Config) -> Result<()> {
    let statements = Template::plain(fill(&tables(config).drops("PROCEDURE"), config, &[]));
    server.drop_tables(&statements).await
}

/// The statements that create the tables and routines of `config`, which must have been checked, or upgrade them from any earlier
/// version that has upgrade steps. They may be run again, even if an earlier run was interrupted.
struct Parts {
    /// The scripts for the tables, with several statements each.
    tables: Vec<String>,
    /// The statements for the routines, one for each.
    routines: Vec<String>,
    installed: String,
}

impl Parts {
    fn of(config: &Config) -> Self {
        let tables = tables(config);
        let version = tables.known(&config.common);
        let numbers = version.replacements();
        let numbers = numbers.each_ref().map(|(key, number)| (*key, number.as_str()));
        let fill = |file: &str| fill(file, config, &numbers);
        let steps = version.steps().map(|(_, step)| fill(&with_additions(step, add)));
        Self {
            tables: std::iter::once(fill(tables.schema)).chain(steps).collect(),
            routines: tables.routines.iter().map(|(_, file)| fill(file)).collect(),
            installed: fill(include_str!("statements/installed.sql")),
        }
    }
}

fn add(added: &Addition<'_>) -> String {
    let statement = added.statement.replace('\'', "''");
    let (look, column) = if added.is_key { ("statistics", "index_name") } else { ("columns", "column_name") };
    let more = [
        ("{look}", look),
        ("{column}", column),
        ("{table}", added.table),
        ("{name}", added.name),
        ("{statement}", &statement),
    ];
    fill_template(include_str!("statements/add.sql"), &more)
}

/// Returns the script that creates the tables and routines, for the programs `mysql` and `mariadb`.
pub(super) fn script(config: &Config) -> String {
    let Parts { tables, routines, installed } = Parts::of(config);
    let mut text = format!("USE `{}`;\n{MODE}\n", database(&config.source.options).replace('`', "``"));
    for table in tables {
        text.extend([&table, "\n"]);
    }
    if !routines.is_empty() {
        // The body of a routine contains semicolons.
        text.push_str("DELIMITER //\n");
        for routine in routines {
            text.extend([&routine, "\n//\n"]);
        }
        text.push_str("DELIMITER ;\n");
    }
    text.extend([&installed, "\n"]);
    text
}

/// Returns the messages that create the tables and routines, in their order.
fn creation(config: &Config) -> Vec<Template> {
    let Parts { tables, routines, installed } = Parts::of(config);
    let all = [vec![MODE.to_owned()], tables, routines, vec![installed]].concat();
    all.into_iter().map(Template::plain).collect()
}

/// Returns the statements that create the tables and routines, one by one.
pub(super) fn one_by_one(config: &Config) -> Vec<String> {
    let Parts { tables, routines, installed } = Parts::of(config);
    let mut statements = vec![MODE.trim_end_matches(';').to_owned()];
    statements.extend(tables.iter().flat_map(|table| split(table)));
    statements.extend(routines.iter().map(|routine| routine.trim().to_owned()));
    statements.extend(split(&installed));
    statements
}

/// Returns the statements of `script`. No statement may contain a semicolon.
fn split(script: &str) -> Vec<String> {
    let statements = script.split(';').map(str::trim);
    statements.filter(|statement| !statement.is_empty()).map(ToOwned::to_owned).collect()
}

/// Lists the existing columns.
fn columns(config: &Config) -> Template {
    Template::new(&fill(include_str!("statements/columns.sql"), config, &[]))
}

/// Reads the existing versions and routines.
fn version(config: &Config) -> Template {
    let Tables { version, routines, .. } = tables(config);
    let mut names: Vec<String> = routines.iter().map(|(name, _)| format!("'{{p}}_{name}'")).collect();
    // A list needs at least one member.
    names.push("''".to_owned());
    let names = names.join(", ");
    let more = [("{routines}", names.as_str()), ("{row}", version.row)];
    Template::new(&fill(include_str!("statements/version.sql"), config, &more))
}

/// Counts the shards.
fn shards(config: &Config) -> Template {
    Template::new(&fill(
        include_str!("statements/shards.sql"),
        config,
        &[("{shards}", shard_table(config).0)],
    ))
}

/// Checks if `table` of the other strategy exists.
fn others(config: &Config, table: &str) -> Template {
    Template::new(&fill(include_str!("statements/others.sql"), config, &[("{table}", table)]))
}

/// Returns the statement that sets the oldest version with access to the tables.
fn raise(config: &Config, oldest: i64) -> String {
    fill(&format!("UPDATE {{p}}_meta SET value = {oldest} WHERE name = 'oldest'"), config, &[])
}
