//! A holder is stopped in the middle of its work, and another one gets the lock and writes. The first one continues with the write that it
//! was about to do, and the table refuses it.
//!
//! ```text
//! cargo run -p polylock-sql --example fenced_update --features sqlite
//! cargo run -p polylock-sql --example fenced_update --features sqlite,postgres postgres://postgres@127.0.0.1/postgres
//! ```
//!
//! With `--function` before the URL the writes are plain SQL, as programs in any language send it, after a call of the function that
//! `polylock schema --fence` prints; with `--trigger` they set the column that the trigger of the table compares. With `--unfenced` the
//! late write carries no token, and destroys the other holder's write.

#[path = "../../polylock/examples/shared/paused.rs"]
mod paused;

use std::time::Duration;

use paused::{Arguments, Order, Result};
use polylock_core::{FencingToken, Guard, Locks, Store, url::StoreUrl};
use polylock_sql::optimistic::FencedUpdate;
use sqlx::AssertSqlSafe;

/// The TTL: the lock outlives a holder that is stopped by this time.
const TTL: Duration = Duration::from_secs(1);

/// Runs the same code with a pool for the database of the URL.
macro_rules! with_pool {
    ($url:expr, $pool:ident => $work:expr) => {
        match StoreUrl::parse($url)?.scheme() {
            "sqlite" => {
                let $pool = sqlx::SqlitePool::connect($url).await?;
                $work
            }
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                let $pool = sqlx::PgPool::connect($url).await?;
                $work
            }
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => {
                let $pool = sqlx::MySqlPool::connect($url).await?;
                $work
            }
            scheme => return Err(unknown(scheme).into()),
        }
    };
}

/// Runs the same code with the store's module and its configuration for the database of the URL.
macro_rules! with_config {
    ($url:expr, $module:ident, $config:ident => $work:expr) => {{
        let url = StoreUrl::parse($url)?;
        let mut keys = url.keys();
        match url.scheme() {
            "sqlite" => {
                use polylock_sql::sqlite as $module;
                let $config = $module::Config::from_url(&url, &mut keys)?;
                $work
            }
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                use polylock_sql::postgres as $module;
                let $config = $module::Config::from_url(&url, &mut keys)?;
                $work
            }
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => {
                use polylock_sql::mysql as $module;
                let $config = $module::Config::from_url(&url, &mut keys)?;
                $work
            }
            scheme => return Err(unknown(scheme).into()),
        }
    }};
}

fn unknown(scheme: &str) -> String {
    format!("this program has no feature for {scheme}: URLs")
}

/// The way in which a write is fenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fence {
    /// By the library.
    Update,
    /// By the database, for plain SQL.
    Function,
    Trigger,
}

/// A row of a table.
struct TableOrder<'u> {
    url: &'u str,
    fence: Fence,
}

impl Order for TableOrder<'_> {
    async fn state(&self) -> Result<String> {
        with_pool!(self.url, pool => {
            Ok(sqlx::query_scalar("SELECT state FROM polylock_example WHERE id = 42").fetch_one(&pool).await?)
        })
    }

    async fn set_state(&self, state: &str, token: Option<FencingToken>) -> Result<Result<(), String>> {
        let Some(token) = token else {
            let sql = format!("UPDATE polylock_example SET state = '{state}' WHERE id = 42");
            with_pool!(self.url, pool => sqlx::query(AssertSqlSafe(sql)).execute(&pool).await.map(drop)?);
            return Ok(Ok(()));
        };
        if self.fence == Fence::Update {
            return with_pool!(self.url, pool => {
                let update = FencedUpdate::new("polylock_example", token).key("id", 42).set("state", state);
                match update.execute(&pool).await {
                    Err(error) if error.is_stale() => Ok(Err(error.to_string())),
                    result => Ok(Ok(result?)),
                }
            });
        }
        let result: sqlx::Result<()> = with_pool!(self.url, pool => async {
            let mut transaction = pool.begin().await?;
            for sql in self.statements(state, token) {
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *transaction).await?;
            }
            transaction.commit().await
        }
        .await);
        match result {
            // The codes of SQLite and of the others.
            Err(sqlx::Error::Database(error))
                if matches!(error.code().as_deref(), Some("1811" | "23PLF")) =>
            {
                Ok(Err(error.message().to_owned()))
            }
            result => Ok(Ok(result?)),
        }
    }
}

impl TableOrder<'_> {
    /// The statements of a fenced write in plain SQL.
    fn statements(&self, state: &str, token: FencingToken) -> Vec<String> {
        if self.fence == Fence::Trigger {
            return vec![format!(
                "UPDATE polylock_example SET fence = {token}, state = '{state}' WHERE id = 42"
            )];
        }
        let call = match self.url.split(':').next() {
            Some("sqlite") => format!("INSERT INTO polylock_fence VALUES ('orders/42', {token})"),
            Some("mysql" | "mariadb") => format!("CALL polylock_fence('orders/42', {token})"),
            _ => format!("SELECT public.polylock_fence('orders/42', {token})"),
        };
        vec![call, format!("UPDATE polylock_example SET state = '{state}' WHERE id = 42")]
    }

    /// Creates a table with one order and a column for the token, and the function and the trigger of a fence.
    async fn create(&self) -> Result<()> {
        // Opening the store creates the file of SQLite, too.
        store(self.url).await?;
        let mut statements = vec![
            "DROP TABLE IF EXISTS polylock_example".to_owned(),
            "CREATE TABLE polylock_example (id INT PRIMARY KEY, state VARCHAR(20), fence BIGINT NOT NULL DEFAULT 0)".to_owned(),
            "INSERT INTO polylock_example (id, state) VALUES (42, 'new')".to_owned(),
        ];
        with_config!(self.url, database, config => {
            let script = config.fence_script()?;
            statements.extend(script.statements());
            if self.fence == Fence::Trigger {
                statements.extend(script.for_table("polylock_example", Some("fence"))?.statements());
            }
        });
        self.run(&statements).await
    }

    async fn drop(&self) -> Result<()> {
        let mut statements = vec!["DROP TABLE polylock_example".to_owned()];
        with_config!(self.url, database, config => {
            statements.extend(config.fence_script()?.drop_statements());
        });
        self.run(&statements).await
    }

    /// Runs statements in one session.
    async fn run(&self, statements: &[String]) -> Result<()> {
        with_pool!(self.url, pool => {
            let mut connection = pool.acquire().await?;
            for statement in statements {
                sqlx::raw_sql(AssertSqlSafe(statement.clone())).execute(&mut *connection).await?;
            }
        });
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::read();
    let directory = tempfile::TempDir::new()?;
    let default = format!("sqlite://{}/example.db", directory.path().display());
    let url = arguments.rest.iter().find(|argument| !argument.starts_with("--")).unwrap_or(&default);
    let has = |flag: &str| arguments.rest.iter().any(|argument| argument == flag);
    let (fence, flag) = match (has("--function"), has("--trigger")) {
        (true, _) => (Fence::Function, Some("--function")),
        (false, true) => (Fence::Trigger, Some("--trigger")),
        (false, false) => (Fence::Update, None),
    };
    let order = TableOrder { url, fence };
    if arguments.is_first {
        return paused::first(acquire(url).await?, &order, &arguments).await;
    }
    order.create().await?;
    let more: Vec<&str> = flag.into_iter().chain([url.as_str()]).collect();
    let result = paused::demonstrate(async || acquire(url).await, &order, &arguments, &more).await;
    order.drop().await?;
    result
}

async fn acquire(url: &str) -> Result<Guard> {
    let locks = Locks::new(store(url).await?);
    Ok(locks.lock("orders/42").ttl(TTL).wait(Duration::from_secs(30)).acquire().await?)
}

async fn store(url: &str) -> Result<Store> {
    // In the same database as the table; it need not be the same.
    with_config!(url, database, config => Ok(database::connect(config).await?))
}
