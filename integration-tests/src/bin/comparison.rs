//! Measures all stores and other lock libraries side by side: `docs/comparison.md`.

use std::{fs, io, path::PathBuf, process::ExitCode};

use clap::Parser;
use polylock_integration_tests::comparison::{page, parts::Part, run};
use tokio::task::block_in_place;

/// Measures all stores and other lock libraries side by side.
#[derive(Debug, Parser)]
enum Command {
    /// Measure, and add the results to a file
    Run {
        /// Only this store or library; may be repeated
        #[arg(long)]
        only: Vec<String>,
        /// Only this part; may be repeated
        #[arg(long)]
        part: Vec<Part>,
        /// The file [default: integration-tests/record/comparison.json]
        #[arg(long)]
        file: Option<PathBuf>,
    },
    /// Write docs/comparison.md from integration-tests/record/comparison.json
    Page,
}

#[tokio::main]
async fn main() -> io::Result<ExitCode> {
    match Command::parse() {
        Command::Run { only, part, file } => {
            let parts = if part.is_empty() { Part::ALL.to_vec() } else { part };
            let file = file.unwrap_or_else(run::path);
            let failures = block_in_place(|| run::run(&only, &parts, &file))?;
            failures.iter().for_each(|failure| eprintln!("{failure}"));
            Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Page => {
            fs::write(page::path(), page::current()?)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
