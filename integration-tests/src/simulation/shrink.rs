//! Makes a failing plan smaller.

use std::io;

use super::{plan::Plan, world};

/// Removes faults and clients from `plan` as long as it still fails in the same way. Returns the smallest plan found, after at most
/// `runs` runs.
///
/// # Errors
/// The errors of [`world::run`].
pub fn shrink(plan: Plan, kind: &str, mut runs: u32) -> io::Result<Plan> {
    let mut smallest = plan;
    'smaller: loop {
        for plan in smallest.clone().smaller() {
            if runs == 0 {
                return Ok(smallest);
            }
            runs -= 1;
            if world::run(&plan, false)?.violations.iter().any(|violation| violation.kind == kind) {
                smallest = plan;
                continue 'smaller;
            }
        }
        return Ok(smallest);
    }
}
