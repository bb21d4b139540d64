//! The script for bash. That of `clap_complete` does not join the words that bash splits at colons and equals signs, so it would not
//! find a store's URL.

use std::{
    ffi::OsString,
    io::{self, Write},
    path::Path,
};

use clap_complete::env::{Bash as Plain, EnvCompleter};

const SCRIPT: &str = include_str!("polylock.bash");

pub(super) struct Bash;

impl EnvCompleter for Bash {
    fn name(&self) -> &'static str {
        Plain.name()
    }

    fn is(&self, name: &str) -> bool {
        Plain.is(name)
    }

    fn write_registration(
        &self,
        variable: &str,
        _: &str,
        _: &str,
        _: &str,
        buffer: &mut dyn Write,
    ) -> io::Result<()> {
        buffer.write_all(SCRIPT.replace("VARIABLE", variable).as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut clap::Command,
        arguments: Vec<OsString>,
        directory: Option<&Path>,
        buffer: &mut dyn Write,
    ) -> io::Result<()> {
        Plain.write_complete(command, arguments, directory, buffer)
    }
}
