//! A run with `--slots` inside another run of the same semaphore.
//!
//! It takes one more slot, which is what a command with two devices needs. Without a limit for its wait, it could wait for ever: for the outer
//! runs, if they hold all slots, or in a circle. If each of N runs holds a slot and waits for another one, none of them ever gets it.

use polylock::{LockName, Locks};

use crate::{
    exit::{Failure, USAGE},
    outer_run,
};

/// Checks that a run for a slot can't wait for ever because of the outer runs.
///
/// # Errors
/// If outer runs hold all slots, or one of them and the wait has no limit.
pub(super) async fn ensure_ends(
    locks: &Locks,
    semaphore: &LockName,
    slots: u32,
    has_limit: bool,
) -> Result<(), Failure> {
    let owners = outer_run::owners();
    if owners.is_empty() {
        return Ok(());
    }
    let status = locks.inspect_semaphore(semaphore).await?;
    let of_outer_run = status.held.iter().filter(|held| outer_run::is_one_of(&owners, &held.holder.owner));
    let held: Vec<String> = of_outer_run.map(|held| held.slot.to_string()).collect();
    let number = u32::try_from(held.len()).unwrap_or(u32::MAX);
    let problem = match number {
        0 => return Ok(()),
        all if all >= slots => "and would wait for itself: there is no other slot",
        _ if has_limit => return Ok(()),
        _ => {
            "and waits for another slot without a limit: runs that do this can wait for each other for ever; use -n or -w"
        }
    };
    let (plural, held) = (if number == 1 { "" } else { "s" }, held.join(", "));
    Err(Failure::new(
        USAGE,
        format!("this command runs in slot{plural} {held} of {semaphore} already, {problem}"),
    ))
}
