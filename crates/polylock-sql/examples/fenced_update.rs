//! A holder is stopped in the middle of its work, and another one gets the lock and writes. The first one continues with the write that it
//! was about to do, and the table refuses it.
//!
//! ```text
//! cargo run -p polylock-sql --example fenced_update --features sqlite
//! cargo run -p polylock-sql --example fenced_update --features sqlite,postgres postgres://postgres@127.0.0.1/postgres
//! ```
//!
//! With `--unfenced` before the URL the late write carries no token, and destroys the other holder's write.
//!
//! The first holder is a separate process (this program again), and SIGSTOP really stops it just after it has checked that it holds the
//! lock. No lock can help there: the process executes no instruction until it continues.

use std::{
    error::Error,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use polylock_core::{Guard, Locks, Store, url::StoreUrl};
use polylock_sql::optimistic::{self, FencedUpdate};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

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
            scheme => return Err(format!("this program has no feature for {scheme}: URLs").into()),
        }
    };
}

/// The first holder, which is stopped at the worst moment.
async fn first(url: &str, unfenced: bool) -> Result<()> {
    let guard = acquire(url).await?;
    println!("A: I hold the lock with token {}; the order is {}", guard.fencing_token(), state(url).await?);
    guard.ensure_held()?;
    println!("A: I have checked that I hold it, and cancel the order now");

    stop_until_continued()?;

    match cancel(url, &guard, unfenced).await? {
        Ok(()) => println!("A: done"),
        Err(refused) => println!("A: refused: {refused}"),
    }
    Ok(())
}

/// The write that the first holder does when it continues.
async fn cancel(url: &str, guard: &Guard, unfenced: bool) -> Result<optimistic::Result<()>> {
    with_pool!(url, pool => if unfenced {
        sqlx::query("UPDATE polylock_example SET state = 'cancelled' WHERE id = 42").execute(&pool).await?;
        Ok(Ok(()))
    } else {
        let update = FencedUpdate::new("polylock_example", guard.fencing_token());
        Ok(update.key("id", 42).set("state", "cancelled").execute(&pool).await)
    })
}

/// The second holder, which does not know of the first.
async fn second(url: &str) -> Result<()> {
    let guard = acquire(url).await?;
    println!("B: I hold the lock with token {}; the order is {}", guard.fencing_token(), state(url).await?);
    with_pool!(url, pool => {
        let update = FencedUpdate::new("polylock_example", guard.fencing_token());
        update.key("id", 42).set("state", "paid").execute(&pool).await?;
    });
    println!("B: the order is paid");
    guard.release().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut flag =
        |name| arguments.iter().position(|argument| argument == name).map(|at| arguments.remove(at));
    let (unfenced, is_first) = (flag("--unfenced").is_some(), flag("--first").is_some());
    let directory = tempfile::TempDir::new()?;
    let url =
        arguments.pop().unwrap_or_else(|| format!("sqlite://{}/example.db", directory.path().display()));
    if is_first {
        return first(&url, unfenced).await;
    }

    make_table(&url).await?;
    let mut holder = start_first(&url, unfenced)?;
    holder.print_lines(2)?;
    second(&url).await?;
    holder.continue_process()?;
    holder.print_lines(1)?;

    let state = state(&url).await?;
    with_pool!(&url, pool => sqlx::query("DROP TABLE polylock_example").execute(&pool).await.map(drop)?);
    if state != "paid" {
        return Err(format!("the order is {state}, but the last holder of the lock has paid it").into());
    }
    println!("the order is {state}, as the last holder of the lock wrote it");
    Ok(())
}

/// Creates a table with one order, and a column for the token.
async fn make_table(url: &str) -> Result<()> {
    // Opening the store creates the file of SQLite, too.
    store(url).await?;
    with_pool!(url, pool => for sql in [
        "DROP TABLE IF EXISTS polylock_example",
        "CREATE TABLE polylock_example (id INT PRIMARY KEY, state VARCHAR(20), fence BIGINT NOT NULL DEFAULT 0)",
        "INSERT INTO polylock_example (id, state) VALUES (42, 'new')",
    ] {
        sqlx::query(sql).execute(&pool).await?;
    });
    Ok(())
}

async fn state(url: &str) -> Result<String> {
    with_pool!(url, pool => {
        Ok(sqlx::query_scalar("SELECT state FROM polylock_example WHERE id = 42").fetch_one(&pool).await?)
    })
}

async fn acquire(url: &str) -> Result<Guard> {
    let locks = Locks::new(store(url).await?);
    Ok(locks.lock("orders/42").ttl(TTL).wait(Duration::from_secs(30)).acquire().await?)
}

/// Opens the store in the same database as the table; it need not be the same.
async fn store(url: &str) -> Result<Store> {
    let url = StoreUrl::parse(url)?;
    let mut keys = url.keys();
    match url.scheme() {
        "sqlite" => {
            use polylock_sql::sqlite::{Config, connect};
            Ok(connect(Config::from_url(&url, &mut keys)?).await?)
        }
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            use polylock_sql::postgres::{Config, connect};
            Ok(connect(Config::from_url(&url, &mut keys)?).await?)
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => {
            use polylock_sql::mysql::{Config, connect};
            Ok(connect(Config::from_url(&url, &mut keys)?).await?)
        }
        scheme => Err(format!("this program has no feature for {scheme}: URLs").into()),
    }
}

/// The process of the first holder. It is killed at the end, so that it is not left stopped.
struct First {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
}

fn start_first(url: &str, unfenced: bool) -> Result<First> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(unfenced.then_some("--unfenced")).args(["--first", url]).stdout(Stdio::piped());
    let mut process = command.spawn()?;
    let output = process.stdout.take().ok_or("no output")?;
    Ok(First { process, output: BufReader::new(output) })
}

impl First {
    /// Prints this many lines of its output.
    fn print_lines(&mut self, lines: usize) -> Result<()> {
        for _ in 0..lines {
            let mut line = String::new();
            if self.output.read_line(&mut line)? == 0 {
                return Err("the first holder has failed".into());
            }
            print!("{line}");
        }
        Ok(())
    }

    fn continue_process(&self) -> Result<()> {
        println!("   (A continues)");
        signal("-CONT", self.process.id())
    }
}

impl Drop for First {
    fn drop(&mut self) {
        // It has ended, or is not needed any more.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn stop_until_continued() -> Result<()> {
    signal("-STOP", std::process::id())
}

fn signal(signal: &str, process: u32) -> Result<()> {
    let sent = Command::new("kill").args([signal, &process.to_string()]).status()?;
    if sent.success() { Ok(()) } else { Err(format!("kill {signal}: {sent}").into()) }
}
