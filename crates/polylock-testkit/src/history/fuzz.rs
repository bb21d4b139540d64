//! Fuzz targets: the lines of a history that several processes have written.

use super::{Rules, check, read};

polylock_fuzz::fuzz_targets!(tests: histories);

fn histories(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let Ok(sections) = read(&text) else { return };
    for section in &sections {
        assert_eq!(section.to_string().trim_end_matches('\n').parse().as_ref(), Ok(section));
    }
    drop(check(&sections, Rules::default()));
}
