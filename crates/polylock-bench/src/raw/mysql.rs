//! MySQL and MariaDB.

use polylock::StoreUrl;
use polylock_sql::mysql::Config;
use sqlx::{ConnectOptions, MySql};

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
    let connections: Connections<MySql> = match floor {
        Floor::Usual => Connections::pool(options).await?,
        Floor::Least => Connections::Own(options.connect().await.map_err(Error::raw)?, None),
    };
    let columns = "(name varbinary(255) PRIMARY KEY, owner binary(16) NOT NULL, expires_at bigint NOT NULL) \
                   ENGINE=InnoDB";
    let statements = Statements::new(&table::name(namespace), columns, ["?", "?", "?"]);
    Ok(Some(Box::new(Table::<MySql>::create(connections, statements).await?)))
}
