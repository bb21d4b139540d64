//! The `polylock` command: runs a command under a distributed lock, and inspects locks.
//!
//! A program of your own can be the same command with further stores: it registers their URL schemes, and calls [`main`].
//!
//! ```no_run
//! # struct Config;
//! # #[async_trait::async_trait]
//! # impl polylock::StoreConfig for Config {
//! #     async fn open(&self) -> polylock::Result<polylock::Store> { Ok(polylock::core::memory::connect()) }
//! # }
//! fn main() -> std::process::ExitCode {
//!     polylock::register("mystore", |_url, _keys| Ok(Config)).expect("the scheme is valid and free");
//!     polylock_cli::main()
//! }
//! ```

mod args;
#[cfg(feature = "check")]
mod bench;
#[cfg(not(feature = "check"))]
#[path = "without/bench.rs"]
mod bench;
#[cfg(feature = "check")]
mod check;
#[cfg(not(feature = "check"))]
#[path = "without/check.rs"]
mod check;
#[cfg(feature = "check")]
mod child;
mod command;
mod completion;
// The pages describe the command with all features.
#[cfg(test)]
#[cfg(all(
    feature = "azure",
    feature = "check",
    feature = "metrics",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "serve",
    feature = "sqlite",
    feature = "top",
    feature = "zookeeper"
))]
mod documented;
mod exit;
#[cfg(test)]
mod fuzz;
mod help;
mod limits;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "without/metrics.rs"]
mod metrics;
mod outer_run;
mod output;
mod run;
#[cfg(feature = "serve")]
mod serve;
#[cfg(not(feature = "serve"))]
#[path = "without/serve.rs"]
mod serve;
mod signals;
mod store;
#[cfg(feature = "top")]
mod top;
#[cfg(not(feature = "top"))]
#[path = "without/top.rs"]
mod top;
mod user;
mod wall_clock;

use std::{
    io::{self, Write as _},
    process::ExitCode,
    thread,
};

use clap::{Parser, error::ErrorKind};
use tokio::runtime::Builder;

use crate::{
    args::{Cli, Command, Format},
    exit::{Failure, INTERNAL, USAGE},
    output::Output,
};

/// Runs the command with the arguments of the process, and returns its exit code.
///
/// Call it on the main thread, before the process has other threads: it starts itself again as the helper process of `polylock run`.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(problem) = limits::problem() {
        // If even this can't be printed, there is no way to report it.
        writeln!(io::stderr(), "polylock: {problem}").ok();
        return INTERNAL.into();
    }
    let child = || run::helper().or_else(check::worker).or_else(bench::worker).or_else(command::keeper);
    if let Some(code) = child().or_else(completion::main) {
        return code;
    }
    if let Some(problem) = limits::threads_problem() {
        writeln!(io::stderr(), "polylock: {problem}").ok();
        return INTERNAL.into();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let error = args::with_nearest_command(error);
            // If even this can't be printed, there is no way to report it.
            error.print().ok();
            let is_requested = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if is_requested { ExitCode::SUCCESS } else { USAGE.into() };
        }
    };
    let problem = if cli.global.output == Format::Markdown && !matches!(cli.command, Command::Bench(_)) {
        Err(Failure::new(USAGE, "--output markdown: only polylock bench writes Markdown; use text or json"))
    } else {
        cli.command.status_fd().map_or(Ok(()), output::ensure_inherited)
    };
    let output = Output::new(&cli.global);
    if let Err(failure) = problem {
        output.error(&failure);
        output.finish();
        return failure.code.into();
    }
    let runtime = match cli.command {
        // Measurements are those of a program with the usual runtime.
        Command::Bench(_) => Builder::new_multi_thread().enable_all().build(),
        // The other processors are for the thread of the store, and for the store itself.
        Command::Serve(_) => {
            let processors = thread::available_parallelism().map_or(1, usize::from);
            Builder::new_multi_thread().worker_threads(processors.div_ceil(2)).enable_all().build()
        }
        _ => Builder::new_current_thread().enable_all().build(),
    };
    let result = match runtime {
        Ok(runtime) => runtime.block_on(dispatch(cli, &output)),
        Err(error) => Err(Failure::new(INTERNAL, format!("can't start the runtime: {error}"))),
    };
    let code = result.unwrap_or_else(|failure| {
        output.error(&failure);
        failure.code
    });
    output.finish();
    code.into()
}

async fn dispatch(cli: Cli, output: &Output) -> Result<u8, Failure> {
    match cli.command {
        Command::Run(run) => run::run(&cli.global, &run, output).await,
        Command::Elect(elect) => run::elect(&cli.global, *elect, output).await,
        Command::Once(once) => run::once(&cli.global, *once, output).await,
        Command::Acquire(args) => command::acquire(&cli.global, &args, output).await,
        Command::Renew(args) => command::renew(&cli.global, &args, output).await,
        Command::Release(handle) => command::release(&cli.global, &handle, output).await,
        Command::Status { exit_code, name } => command::status(&cli.global, &name, exit_code, output).await,
        Command::List { prefix } => command::list(&cli.global, &prefix, output).await,
        Command::Watch(args) => command::watch(&cli.global, &args, output).await,
        Command::Top { prefix } => top::top(&cli.global, &prefix, output).await,
        Command::Serve(args) => serve::serve(&cli.global, &args, output).await,
        Command::Break(args) => command::break_lock(&cli.global, &args, output).await,
        Command::Bench(args) => bench::bench(&cli.global, &args, output).await,
        Command::Check(args) => check::check(&cli.global, &args, output).await,
        Command::Admit { yes } => command::admit(&cli.global, yes, output).await,
        Command::Schema(args) => command::schema(&cli.global, &args, output),
        Command::Completions { shell } => command::completions(shell, output),
        Command::Man { command, dir } => command::man(command.as_deref(), dir.as_deref(), output),
    }
}
