//! The place from which the URL of the store comes.

use std::{
    fmt, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// The place from which the URL of the store comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The URL is on the command line, where other users can read it.
    CommandLine,
    Variable(String),
    /// A file that contains the URL.
    File(PathBuf),
    /// The config file, and perhaps a profile in it.
    Config(PathBuf, Option<String>),
    OuterRun,
    /// Nothing names a store.
    Default,
}

impl Origin {
    /// Returns the origin of `-S text`.
    pub(super) fn of_flag(text: &str) -> Self {
        Self::of_reference(text).unwrap_or(Self::CommandLine)
    }

    /// Returns the origin of the store `text`, which is the value of a variable.
    pub(super) fn of_variable(name: &str, text: &str) -> Self {
        Self::of_reference(text).unwrap_or_else(|| Self::Variable(name.to_owned()))
    }

    fn of_reference(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("env", name) => Some(Self::Variable(name.to_owned())),
            ("file", path) => Some(Self::File(path.into())),
            _ => None,
        }
    }

    /// Returns the origin of the store of a section of the config file, or of the default store if it `names` none.
    pub(super) fn of_section(names: bool, file: Option<&Path>, profile: Option<&str>) -> Self {
        match file {
            Some(file) if names => Self::Config(file.to_owned(), profile.map(ToOwned::to_owned)),
            _ => Self::Default,
        }
    }

    /// Returns the reason for which other users of this machine can read the URL, with the remedy.
    #[cfg_attr(not(feature = "check"), allow(dead_code, reason = "a check reports it"))]
    pub(crate) fn readable_by_others(&self) -> Option<String> {
        match self {
            Self::CommandLine => Some(
                "other users can read a password on a command line: use --store-env, -S file:PATH or the config file".to_owned(),
            ),
            Self::File(file) | Self::Config(file, _) => {
                let mode = fs::metadata(file).ok()?.permissions().mode();
                let problem = format!("other users can read the password in {}: run chmod go= on it", file.display());
                (mode & 0o044 != 0).then_some(problem)
            }
            Self::Variable(_) | Self::OuterRun | Self::Default => None,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommandLine => f.write_str("-S on the command line"),
            Self::Variable(name) => write!(f, "the variable {name}"),
            Self::File(file) => write!(f, "the file {}", file.display()),
            Self::Config(file, None) => write!(f, "the config file {}", file.display()),
            Self::Config(file, Some(profile)) => {
                write!(f, "profile {profile} of the config file {}", file.display())
            }
            Self::OuterRun => f.write_str("the outer polylock run"),
            Self::Default => f.write_str("the default, because nothing names a store"),
        }
    }
}
