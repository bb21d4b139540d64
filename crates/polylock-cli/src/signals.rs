//! The signals that polylock forwards, and those that end its wait.

use std::{fs, io, task::Poll};

use rustix::process::Signal;
use signal_hook::low_level::signal_name;
use tokio::signal::unix::{self, SignalKind};

/// The signals that are forwarded to the command.
const FORWARDED: [Signal; 7] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2, Signal::CONT];

/// The signals that this process receives from now on instead of being ended by them.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Starts to receive signals. An ignored signal stays ignored, for the command, too: under `nohup` a hang-up has no effect.
    pub(crate) fn listen() -> io::Result<Self> {
        let is_ignored = ignored();
        let handled = FORWARDED.into_iter().filter(|signal| !is_ignored(signal.as_raw()));
        let listen = |signal: Signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
        Ok(Self(handled.map(listen).collect::<io::Result<_>>()?))
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| {
            for (signal, arrivals) in &mut self.0 {
                if arrivals.poll_recv(cx).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Takes the signals that have arrived, and returns those that request polylock to end.
    pub(crate) async fn take_received(&mut self) -> Vec<Signal> {
        // The runtime reads the signals from the kernel when no task runs.
        tokio::task::yield_now().await;
        let mut received = Vec::new();
        tokio::select! {
            biased;
            never = async { loop { received.push(self.next().await); } } => never,
            () = std::future::ready(()) => {}
        }
        received.retain(|signal| is_termination(*signal));
        received
    }

    /// Waits for the next signal that requests polylock to end.
    pub(crate) async fn next_termination(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if is_termination(signal) {
                return signal;
            }
        }
    }
}

/// Returns true for a signal that requests polylock to end.
pub(crate) fn is_termination(signal: Signal) -> bool {
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].contains(&signal)
}

/// Returns a function that is true for the number of an ignored signal; always false if the system does not show it (`/proc`).
pub(crate) fn ignored() -> impl Fn(i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    move |signal| mask >> (signal - 1) & 1 == 1
}

/// Parses `TERM`, `SIGTERM`, or a number.
pub(crate) fn parse(text: &str) -> Result<Signal, String> {
    let name = text.to_ascii_uppercase();
    (1..32)
        .find(|&number| {
            name == number.to_string()
                || signal_name(number)
                    .is_some_and(|known| known == name || known.strip_prefix("SIG") == Some(name.as_str()))
        })
        .and_then(Signal::from_named_raw)
        .ok_or_else(|| "no such signal: write a name such as TERM, INT or USR1, or its number".to_owned())
}

/// Returns `SIGTERM`, or the number of a signal without a name.
pub(crate) fn name(signal: Signal) -> String {
    signal_name(signal.as_raw()).map_or_else(|| signal.as_raw().to_string(), ToOwned::to_owned)
}

/// Returns the exit code of a process that `signal` has ended.
pub(crate) fn exit_code(signal: i32) -> u8 {
    u8::try_from(signal).map_or(u8::MAX, |number| crate::exit::SIGNAL.saturating_add(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        for same in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(parse(same), Ok(Signal::TERM), "{same}");
        }
        assert_eq!(parse("usr1"), Ok(Signal::USR1));
        assert!(parse("NO").is_err() && parse("0").is_err() && parse("99").is_err() && parse("").is_err());
        assert_eq!(name(Signal::TERM), "SIGTERM");
        assert_eq!(exit_code(15), 143);
    }
}
