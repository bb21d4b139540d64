//! The `polylock` command: runs a command under a distributed lock, and looks at locks.

mod args;
mod command;
#[cfg(test)]
mod documented;
mod exit;
mod help;
mod output;
mod run;
mod signals;
mod store;
mod user;
mod wall_clock;

use std::process::ExitCode;

use clap::{Parser, error::ErrorKind};

use crate::{
    args::{Cli, Command},
    exit::{Failure, INTERNAL, USAGE},
    output::Output,
};

fn main() -> ExitCode {
    if let Some(code) = run::helper() {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nobody is left to tell if even this can't be printed.
            error.print().ok();
            let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if asked { ExitCode::SUCCESS } else { USAGE.into() };
        }
    };
    let output = Output::new(&cli.global);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(dispatch(cli, &output)),
        Err(error) => Err(Failure::new(INTERNAL, format!("the runtime can't start: {error}"))),
    };
    let code = done.unwrap_or_else(|failure| {
        output.error(&failure);
        failure.code
    });
    output.finish();
    code.into()
}

async fn dispatch(cli: Cli, output: &Output) -> Result<u8, Failure> {
    match cli.command {
        Command::Run(run) => run::run(&cli.global, &run, output).await,
        Command::Status { name } => command::status(&cli.global, &name, output).await,
        Command::List { prefix } => command::list(&cli.global, &prefix, output).await,
        Command::Break(order) => command::break_lock(&cli.global, &order, output).await,
        Command::Admit { yes } => command::admit(&cli.global, yes, output).await,
        Command::Schema => command::schema(&cli.global, output),
        Command::Completions { shell } => command::completions(shell, output),
        Command::Man { command, dir } => command::man(command.as_deref(), dir.as_deref(), output),
    }
}
