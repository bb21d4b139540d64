//! Shell completions and manual pages, generated from the definition of the command line, and the tables of a store.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use polylock::FenceSchema;

use crate::{
    args::{Cli, Global, Schema},
    completion,
    exit::{CANT_CREATE, Failure, INTERNAL, USAGE},
    output::Output,
    store,
};

/// Prints the statements that create the store's tables, or a fence, without connecting to the store.
pub(crate) fn schema(global: &Global, args: &Schema, output: &Output) -> Result<u8, Failure> {
    let config = store::choose(global, output)?.config;
    if args.fence {
        output.data(&config.fence_schema(&fence(args))?)?;
        return Ok(0);
    }
    match config.schema()? {
        Some(statements) => output.data(&statements)?,
        None => output
            .note("this store needs no preparation: a program that opens it creates everything it needs"),
    }
    Ok(0)
}

/// Returns the part of the fence that the flags select.
fn fence(args: &Schema) -> FenceSchema {
    let mut fence = FenceSchema::default();
    if let Some(table) = &args.table {
        fence = fence.table(table);
    }
    if let Some(column) = &args.column {
        fence = fence.column(column);
    }
    if args.drop { fence.drop() } else { fence }
}

/// Prints the script for the completions of `shell`.
pub(crate) fn completions(shell: Shell, output: &Output) -> Result<u8, Failure> {
    let script = completion::script(shell)
        .map_err(|error| Failure::new(INTERNAL, format!("there is no script for {shell}: {error}")))?;
    output.data(&script)?;
    Ok(0)
}

/// Prints a manual page, or writes all of them into a directory.
pub(crate) fn man(page: Option<&str>, directory: Option<&Path>, output: &Output) -> Result<u8, Failure> {
    let mut cli = Cli::command();
    if let Some(directory) = directory {
        clap_mangen::generate_to(cli, directory).map_err(|error| {
            Failure::new(
                CANT_CREATE,
                format!(
                    "can't write the pages to {}: {error}; choose an existing, writable directory",
                    directory.display()
                ),
            )
        })?;
        return Ok(0);
    }
    // This sets the full names of the pages of the commands.
    cli.build();
    let command = match page {
        None => cli,
        Some(name) => cli.find_subcommand(name).cloned().ok_or_else(|| {
            Failure::new(USAGE, format!("there is no command {name:?}; see polylock --help"))
        })?,
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut text)
        .map_err(|error| Failure::new(INTERNAL, format!("can't render the page: {error}")))?;
    output.data(&String::from_utf8_lossy(&text))?;
    Ok(0)
}
