//! Lines that a thread of their own writes, so that an unread pipe or terminal delays nothing else.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Write as _},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use polylock::{Clock, SystemClock};
use rustix::event::{PollFd, PollFlags, poll};

/// The size of unwritten lines in bytes from which further ones are dropped.
const MAX_UNWRITTEN: usize = 16 * 1024;
/// The time that the end of the program waits for a reader that reads nothing.
const STALL_TIMEOUT: Duration = Duration::from_millis(500);
/// The time that it waits for a slow reader.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// The weight of a line: only ordinary lines may be dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weight {
    Ordinary,
    /// Rare lines, which are always queued.
    Essential,
}

/// A queue of lines and the thread that writes them. Clones share both.
#[derive(Debug, Clone)]
pub(super) struct Writer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// The first line is being written.
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    written: u64,
    is_dropping: bool,
    /// The number of lines dropped since the last report.
    dropped: u64,
    /// True if the reader has closed its end.
    is_closed: bool,
}

impl Writer {
    /// Starts a thread that writes to `file`.
    ///
    /// # Errors
    /// If the system can't start a thread.
    pub(super) fn start(file: File) -> io::Result<Self> {
        Self::start_with(|| Ok(file))
    }

    /// Starts a thread that opens a file, which may take any time, and writes to it. If that fails, the lines are dropped.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(super) fn start_with(open: impl FnOnce() -> io::Result<File> + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new() });
        let thread_shared = shared.clone();
        let write = move || match open() {
            Ok(file) => thread_shared.write(file),
            Err(_) => thread_shared.close(&mut thread_shared.queue()),
        };
        thread::Builder::new().name("polylock-output".to_owned()).spawn(write)?;
        Ok(Self(shared))
    }

    /// Queues `line` and returns at once. Returns false if it was dropped because too many lines are unread.
    pub(super) fn send(&self, line: Vec<u8>, weight: Weight) -> bool {
        let mut queue = self.0.queue();
        if queue.is_closed {
            return true;
        }
        // It resumes at half of the limit, so that the gaps are few.
        queue.is_dropping =
            queue.bytes + line.len() > if queue.is_dropping { MAX_UNWRITTEN / 2 } else { MAX_UNWRITTEN };
        if queue.is_dropping && weight == Weight::Ordinary {
            queue.dropped += 1;
            return false;
        }
        queue.bytes += line.len();
        queue.lines.push_back(line);
        self.0.changed.notify_all();
        true
    }

    /// Returns the number of lines dropped since the last call, if a line of `weight` is queued again; else 0.
    pub(super) fn dropped(&self, weight: Weight) -> u64 {
        let mut queue = self.0.queue();
        let is_due = weight == Weight::Essential || queue.bytes <= MAX_UNWRITTEN / 2;
        if is_due { std::mem::take(&mut queue.dropped) } else { 0 }
    }

    /// Returns true if all lines have been written.
    pub(super) fn is_idle(&self) -> bool {
        self.0.queue().lines.is_empty()
    }

    /// Waits until all lines have been written. Gives up if the reader reads nothing for a while.
    pub(super) fn flush(&self) {
        let began = SystemClock.now();
        let (mut queue, mut progress) = (self.0.queue(), began);
        let mut written = queue.written;
        while !queue.lines.is_empty() {
            let left = (progress + STALL_TIMEOUT).min(began + FLUSH_TIMEOUT).since(SystemClock.now());
            if left.is_zero() {
                return;
            }
            queue = self.0.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
            if queue.written != written {
                (written, progress) = (queue.written, SystemClock.now());
            }
        }
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes lines until the reader closes its end. Ends with the program.
    fn write(&self, mut file: File) {
        let mut queue = self.queue();
        loop {
            let Some(line) = queue.lines.front_mut().map(std::mem::take) else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(queue);
            let outcome = write_all(&mut file, &line);
            queue = self.queue();
            queue.lines.pop_front();
            queue.bytes -= line.len();
            queue.written += 1;
            if outcome.is_err() {
                self.close(&mut queue);
            }
            self.changed.notify_all();
        }
    }

    /// Drops all lines, now and later.
    fn close(&self, queue: &mut Queue) {
        (queue.is_closed, queue.bytes) = (true, 0);
        queue.lines.clear();
        self.changed.notify_all();
    }
}

/// Writes all bytes like [`Write::write_all`](io::Write::write_all), also if another owner of the descriptor has made it non-blocking.
fn write_all(file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(number) => bytes = &bytes[number..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(file, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::fd::OwnedFd,
    };

    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    use super::*;

    fn pipe() -> (io::PipeReader, Writer) {
        let (reader, writer) = io::pipe().unwrap();
        (reader, Writer::start(OwnedFd::from(writer).into()).unwrap())
    }

    /// Returns a full pipe, in which the first line is not written before something is read, and the number of bytes in it.
    fn full_pipe() -> (io::PipeReader, usize, Writer) {
        let (reader, mut writer) = io::pipe().unwrap();
        let (flags, mut full) = (fcntl_getfl(&writer).unwrap(), 0);
        fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
        while let Ok(number) = writer.write(&[b'\n'; 4096]) {
            full += number;
        }
        fcntl_setfl(&writer, flags).unwrap();
        (reader, full, Writer::start(OwnedFd::from(writer).into()).unwrap())
    }

    #[test]
    fn dropped_lines_are_counted_and_essential_lines_are_queued() {
        let (mut reader, full, writer) = full_pipe();
        let line = || vec![b'x'; 1024];
        let mut sent = 0;
        while writer.send(line(), Weight::Ordinary) {
            sent += 1;
            assert!(sent < 1000);
        }
        assert!(writer.send(b"essential".to_vec(), Weight::Essential));
        assert!(!writer.send(line(), Weight::Ordinary));
        assert_eq!(writer.dropped(Weight::Ordinary), 0, "reported before there is space again");
        let began = SystemClock.now();
        writer.flush();
        assert!(
            SystemClock.now().since(began) < FLUSH_TIMEOUT,
            "flush waited for a reader that reads nothing"
        );
        let mut bytes = vec![0; full + sent * 1024 + 9];
        reader.read_exact(&mut bytes).unwrap();
        assert!(bytes.ends_with(b"xessential"));
        let limit = SystemClock.now() + Duration::from_secs(30);
        while !writer.is_idle() && SystemClock.now() < limit {
            writer.flush();
        }
        assert!(writer.is_idle() && writer.send(line(), Weight::Ordinary));
        assert_eq!((writer.dropped(Weight::Ordinary), writer.dropped(Weight::Ordinary)), (2, 0));
    }

    #[test]
    fn a_closed_reader_delays_nothing() {
        let (reader, writer) = pipe();
        drop(reader);
        for _ in 0..1000 {
            assert!(writer.send(vec![b'x'; 1024], Weight::Ordinary));
            writer.flush();
        }
    }
}
