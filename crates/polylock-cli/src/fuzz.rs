//! Fuzz targets: values on the command line.

use crate::signals;

polylock_fuzz::fuzz_targets!(tests: signals);

fn signals(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let Ok(signal) = signals::parse(&text) else { return };
    assert_eq!(signals::parse(&signals::name(signal)), Ok(signal));
    assert!(signals::exit_code(signal.as_raw()) > 128);
}
