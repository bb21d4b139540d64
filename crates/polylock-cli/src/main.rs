//! The `polylock` command. The library of this package has its documentation.

use std::process::ExitCode;

fn main() -> ExitCode {
    polylock_cli::main()
}
