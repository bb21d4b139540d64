//! SQLite, with the durability of the store.

use polylock::StoreUrl;
use sqlx::{
    Connection, Sqlite, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

use super::{
    client::{Floor, RawClient, store_keys},
    table::{self, Connections, Statements, Table},
};
use crate::{Error, Result};

pub(super) async fn open(
    url: &StoreUrl,
    namespace: &str,
    floor: Floor,
) -> Result<Option<Box<dyn RawClient>>> {
    let file = url.file()?;
    let durability = store_keys(url)?.text("polylock.durability");
    let is_full = durability.is_none_or(|durability| durability == "full");
    let connect = async |synchronous| {
        let options = SqliteConnectOptions::new().filename(&file).create_if_missing(true);
        let options = options.journal_mode(SqliteJournalMode::Wal).synchronous(synchronous);
        SqliteConnection::connect_with(&options).await.map_err(Error::raw)
    };
    let release = match floor {
        Floor::Usual => None,
        // The release of the store is not synced.
        Floor::Least if is_full => Some(connect(SqliteSynchronous::Normal).await?),
        Floor::Least => return Ok(None),
    };
    let synchronous = if is_full { SqliteSynchronous::Full } else { SqliteSynchronous::Normal };
    let connections = Connections::Own(connect(synchronous).await?, release);
    let columns = "(name BLOB PRIMARY KEY, owner BLOB NOT NULL, expires_at INTEGER NOT NULL) STRICT";
    let statements = Statements::new(&table::name(namespace), columns, ["?1", "?2", "?3"]);
    Ok(Some(Box::new(Table::<Sqlite>::create(connections, statements).await?)))
}
