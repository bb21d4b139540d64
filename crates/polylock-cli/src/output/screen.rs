//! A progress bar on the terminal of stderr, which no reader delays.

use std::{
    fmt::Write as _,
    io,
    ops::Deref,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

use super::stderr;

/// The maximum number of frames in a second.
const FRAMES_PER_SECOND: u8 = 20;

/// The terminal on stderr. Drawing does not wait for it: a frame is dropped if the previous one has not been written.
#[derive(Debug, Default)]
struct Screen {
    frame: Mutex<String>,
    /// True if the next frame removes the display.
    is_last: Arc<AtomicBool>,
}

impl Screen {
    fn add(&self, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        self.frame.lock().unwrap_or_else(PoisonError::into_inner).write_fmt(text).map_err(io::Error::other)
    }

    /// Moves the cursor by `number` cells in a direction.
    fn step(&self, number: usize, direction: char) -> io::Result<()> {
        if number == 0 { Ok(()) } else { self.add(format_args!("\u{1b}[{number}{direction}")) }
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        match rustix::termios::tcgetwinsize(io::stderr()) {
            Ok(size) if size.ws_col > 0 => size.ws_col,
            _ => 80,
        }
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.step(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.step(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.step(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.step(n, 'D')
    }

    fn write_line(&self, s: &str) -> io::Result<()> {
        self.add(format_args!("{s}\n"))
    }

    fn write_str(&self, s: &str) -> io::Result<()> {
        self.add(format_args!("{s}"))
    }

    fn clear_line(&self) -> io::Result<()> {
        self.add(format_args!("\r\u{1b}[2K"))
    }

    fn flush(&self) -> io::Result<()> {
        let frame = std::mem::take(&mut *self.frame.lock().unwrap_or_else(PoisonError::into_inner));
        stderr::draw(frame, self.is_last.load(Ordering::Relaxed));
        Ok(())
    }
}

/// A progress bar, which is removed from the terminal when this is dropped.
#[derive(Debug)]
pub(crate) struct Bar {
    bar: ProgressBar,
    is_last: Arc<AtomicBool>,
}

impl Bar {
    /// Starts a progress bar if stderr is a terminal. Without a length it is a spinner.
    pub(crate) fn on_terminal(length: Option<u64>, template: &str) -> Option<Self> {
        if ProgressDrawTarget::stderr().is_hidden() {
            return None;
        }
        let screen = Screen::default();
        let is_last = screen.is_last.clone();
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(screen), FRAMES_PER_SECOND);
        let bar = ProgressBar::with_draw_target(length, target);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Some(Self { bar, is_last })
    }
}

impl Deref for Bar {
    type Target = ProgressBar;

    fn deref(&self) -> &ProgressBar {
        &self.bar
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.is_last.store(true, Ordering::Relaxed);
        self.bar.finish_and_clear();
    }
}
