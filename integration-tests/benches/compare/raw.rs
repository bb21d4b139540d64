//! The floor: what the same driver takes for the two statements that no lock can do without.

use std::path::Path;

use sqlx::{
    Connection, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

/// `INSERT` and `DELETE` on a file with the settings that the store has.
pub(crate) struct Raw {
    insert: SqliteConnection,
    /// Where the release is less durable than the grant, as in the store: it need not survive a power cut.
    delete: Option<SqliteConnection>,
}

impl Raw {
    pub(crate) async fn open(file: &Path, grant: SqliteSynchronous, release: SqliteSynchronous) -> Self {
        let connect = async |synchronous| {
            let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
            let options = options.journal_mode(SqliteJournalMode::Wal).synchronous(synchronous);
            SqliteConnection::connect_with(&options).await.unwrap()
        };
        let mut insert = connect(grant).await;
        let table = "CREATE TABLE IF NOT EXISTS raw (
            name BLOB PRIMARY KEY, owner BLOB NOT NULL, expires_at INTEGER NOT NULL) STRICT";
        sqlx::query(table).execute(&mut insert).await.unwrap();
        let delete = if matches!(
            (grant, release),
            (SqliteSynchronous::Full, SqliteSynchronous::Full)
                | (SqliteSynchronous::Normal, SqliteSynchronous::Normal)
        ) {
            None
        } else {
            Some(connect(release).await)
        };
        Self { insert, delete }
    }

    pub(crate) async fn pair(&mut self, name: &[u8], owner: [u8; 16]) {
        let insert = sqlx::query("INSERT INTO raw VALUES (?1, ?2, ?3)");
        let insert = insert.bind(name).bind(owner.to_vec()).bind(i64::MAX);
        insert.execute(&mut self.insert).await.unwrap();
        let delete =
            sqlx::query("DELETE FROM raw WHERE name = ?1 AND owner = ?2").bind(name).bind(owner.to_vec());
        delete.execute(self.delete.as_mut().unwrap_or(&mut self.insert)).await.unwrap();
    }
}
