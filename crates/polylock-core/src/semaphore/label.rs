//! The labels of the holds of a semaphore: the number of slots, and the label of the user.

const PREFIX: &str = "slots=";

/// Returns the label of a hold.
pub(super) fn of(slots: u32, label: &str) -> String {
    if label.is_empty() { format!("{PREFIX}{slots}") } else { format!("{PREFIX}{slots} {label}") }
}

/// Returns the number of slots and the label of the user; `None` if the hold is not one of a semaphore.
pub(super) fn parse(label: &str) -> Option<(u32, &str)> {
    let (slots, label) = label.strip_prefix(PREFIX).map(|rest| rest.split_once(' ').unwrap_or((rest, "")))?;
    Some((slots.parse().ok()?, label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_parsed_back() {
        for label in ["", "nightly", "slots=3 x"] {
            assert_eq!(parse(&of(4, label)), Some((4, label)));
        }
        assert_eq!(parse("nightly"), None);
        assert_eq!(parse("slots=x"), None);
    }
}
