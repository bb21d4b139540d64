//! Side by side with the raw driver.
fn main() {}
