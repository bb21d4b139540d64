//! The rule by which an election goes on after a term, as a pure function.

use std::time::Duration;

use super::finish::Verdict;
use crate::{
    args::Restart,
    exit::{Failure, LOST},
};

/// The rule of `polylock elect`.
#[derive(Debug, Clone, Copy)]
pub(super) struct RestartRule {
    restart: Restart,
    delay: Duration,
}

/// The next step after a term.
#[derive(Debug)]
pub(super) enum Next {
    /// The election ends with this verdict.
    End(Verdict),
    /// This process campaigns again.
    Campaign {
        /// The pause before.
        after: Duration,
        /// The end of the term, for the user.
        reason: String,
    },
}

impl RestartRule {
    pub(super) const fn new(restart: Restart, delay: Duration) -> Self {
        Self { restart, delay }
    }

    /// Returns the next step after a term with this outcome.
    ///
    /// # Errors
    /// The failure of the term, unless its lease ended before the command could start.
    pub(super) fn next(&self, outcome: Result<Verdict, Failure>) -> Result<Next, Failure> {
        let verdict = match outcome {
            Ok(verdict) => verdict,
            Err(failure) if failure.code == LOST => {
                return Ok(Next::Campaign { after: self.delay, reason: failure.message });
            }
            Err(failure) => return Err(failure),
        };
        Ok(match verdict.name {
            _ if verdict.is_final => Next::End(verdict),
            // The loss was reported when it was detected.
            "lost" => Next::Campaign { after: Duration::ZERO, reason: "the command has ended".to_owned() },
            "command" if self.restarts(verdict.code) => Next::Campaign {
                after: self.delay,
                reason: format!("the command has exited with {}", verdict.code),
            },
            _ => Next::End(verdict),
        })
    }

    fn restarts(&self, code: u8) -> bool {
        match self.restart {
            Restart::No => false,
            Restart::OnFailure => code != 0,
            Restart::Always => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_secs(3);

    fn verdict(name: &'static str, code: u8, is_final: bool) -> Verdict {
        Verdict { name, code, reason: None, is_final }
    }

    /// Returns the pause before the next campaign, or the exit code.
    fn next(restart: Restart, outcome: Result<Verdict, Failure>) -> Result<Duration, u8> {
        match RestartRule::new(restart, DELAY).next(outcome) {
            Ok(Next::Campaign { after, .. }) => Ok(after),
            Ok(Next::End(verdict)) => Err(verdict.code),
            Err(failure) => Err(failure.code),
        }
    }

    #[test]
    fn the_exit_of_the_command_ends_the_election_unless_it_is_to_be_restarted() {
        for (restart, code, expected) in [
            (Restart::No, 0, Err(0)),
            (Restart::No, 7, Err(7)),
            (Restart::OnFailure, 0, Err(0)),
            (Restart::OnFailure, 7, Ok(DELAY)),
            (Restart::Always, 0, Ok(DELAY)),
            (Restart::Always, 7, Ok(DELAY)),
        ] {
            assert_eq!(next(restart, Ok(verdict("command", code, false))), expected, "{restart:?} {code}");
        }
    }

    #[test]
    fn a_loss_never_ends_the_election() {
        for restart in [Restart::No, Restart::OnFailure, Restart::Always] {
            assert_eq!(next(restart, Ok(verdict("lost", LOST, false))), Ok(Duration::ZERO));
            // The lease ended before the command could start.
            assert_eq!(next(restart, Err(Failure::new(LOST, ""))), Ok(DELAY));
        }
    }

    #[test]
    fn a_signal_a_survivor_and_a_failure_end_it() {
        for (outcome, code) in [
            (Ok(verdict("command", 143, true)), 143),
            (Ok(verdict("lost", LOST, true)), LOST),
            (Ok(verdict("interrupted", 130, false)), 130),
            (Err(Failure::new(127, "")), 127),
        ] {
            assert_eq!(next(Restart::Always, outcome), Err(code));
        }
    }
}
