//! Fuzz targets: the status of a process, which contains its name.

use super::Stat;

polylock_fuzz::fuzz_targets!(tests: stat);

fn stat(input: &[u8]) {
    let name = String::from_utf8_lossy(input);
    Stat::parse(&name);
    let line = format!("42 ({name}) S 7 40 0 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 8123 9 9");
    let stat = Stat::parse(&line).unwrap();
    assert_eq!((stat.id.as_raw_pid(), stat.started), (42, 8123));
}
