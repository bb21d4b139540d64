//! A planted bug.

/// A bug to plant.
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    pub(crate) file: &'static str,
    /// The text to replace, which must occur exactly once.
    pub(super) from: &'static str,
    /// The replacement.
    pub(super) to: &'static str,
    /// The test that must fail: its program (`units of` a command or a `library` for unit tests), and its name.
    pub(crate) test: (&'static str, &'static str),
}

impl Mutant {
    /// Returns the file with the bug, or the reason why it can't be planted.
    pub(crate) fn planted(&self, text: &str) -> Result<String, String> {
        match text.matches(self.from).count() {
            1 => Ok(text.replace(self.from, self.to)),
            count => Err(format!(
                "{} contains the text {count} times instead of once: update the mutant",
                self.file
            )),
        }
    }
}
