//! PostgreSQL, with the durability of the store.

use polylock::StoreUrl;
use polylock_sql::postgres::Config;
use sqlx::{ConnectOptions, Postgres};

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
    let options = Config::from_url(url, &mut store_keys(url)?)?.connect_options();
    let mut keys = store_keys(url)?;
    let schema = keys.text("polylock.schema").unwrap_or_else(|| Config::DEFAULT_SCHEMA.to_owned());
    let is_relaxed = keys.text("polylock.durability").is_some_and(|durability| durability == "relaxed");
    let with = |commit: &str| options.clone().options([("synchronous_commit", commit)]);
    let grant = with(if is_relaxed { "off" } else { "on" });
    let connections: Connections<Postgres> = match floor {
        Floor::Usual => Connections::pool(grant).await?,
        Floor::Least => Connections::Own(
            grant.connect().await.map_err(Error::raw)?,
            // The release of the store is not synced.
            Some(with("off").connect().await.map_err(Error::raw)?),
        ),
    };
    let columns = "(name bytea PRIMARY KEY, owner bytea NOT NULL, expires_at bigint NOT NULL)";
    let table = format!("\"{schema}\".{}", table::name(namespace));
    let statements = Statements::new(&table, columns, ["$1", "$2", "$3"]);
    Ok(Some(Box::new(Table::<Postgres>::create(connections, statements).await?)))
}
