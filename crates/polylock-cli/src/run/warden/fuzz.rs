//! Fuzz targets: the messages between polylock and its warden.

use super::message::{Event, Inbox, Order};

polylock_fuzz::fuzz_targets!(tests: messages);

fn messages(input: &[u8]) {
    let mut inbox = Inbox::default();
    for part in input.chunks(7) {
        inbox.add(part);
    }
    let mut count = 0;
    while let Some(line) = inbox.line() {
        count += 1;
        if let Some(order) = Order::from_line(&line) {
            assert_eq!(Order::from_line(order.to_line().trim_end_matches('\n')), Some(order));
        }
        if let Some(event) = Event::from_line(&line) {
            assert_eq!(Event::from_line(event.to_line().trim_end_matches('\n')), Some(event));
        }
    }
    assert_eq!(count, input.iter().filter(|byte| **byte == b'\n').count());
}
