//! The suggestion for a misspelt command.

use clap::{
    CommandFactory, Error,
    error::{ContextKind, ContextValue},
};
use polylock::core::url::nearest;

use super::Cli;

/// Replaces the suggestion for a misspelt command: that of clap prefers long names, and means `renew` by `rn`.
pub(crate) fn with_nearest_command(mut error: Error) -> Error {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    let cli = Cli::command();
    let known = cli.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name);
    if let Some(nearest) = nearest(typed, known) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![nearest.to_owned()]));
    }
    error
}
