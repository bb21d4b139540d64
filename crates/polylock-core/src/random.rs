//! Random numbers that no other process can guess.

use crate::process;

/// Returns 64 random bits.
pub(crate) fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

/// Fills `bytes` with random bits.
#[expect(
    clippy::expect_used,
    reason = "without a random source no id is safe, and no later step can mend that"
)]
pub(crate) fn fill(bytes: &mut [u8]) {
    if process::fill(bytes) {
        return;
    }
    getrandom::fill(bytes).expect("the operating system's random source works");
}
