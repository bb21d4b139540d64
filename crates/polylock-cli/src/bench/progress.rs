//! The progress of a benchmark: a bar on a terminal, otherwise a line for each part.

use std::time::Duration;

use polylock::{Clock, Moment, SystemClock, duration};
use polylock_bench::{Part, Settings};

use crate::output::{Bar, Output, milliseconds};

/// The progress of all stores, in units of planned time.
pub(super) struct Progress {
    output: Output,
    bar: Option<Bar>,
    store: String,
    /// The planned time of the parts that have ended.
    done: Duration,
    current: Option<(Part, Duration, Moment)>,
}

impl Progress {
    /// Begins the display for so many stores.
    pub(super) fn begin(output: Output, settings: &Settings, stores: usize) -> Self {
        let each: Duration = settings.parts.iter().map(|part| settings.time_of(*part)).sum();
        let all = each * u32::try_from(stores).unwrap_or(u32::MAX);
        let template = "[{bar:30}] {percent:>3} %  {msg}";
        let bar = if output.is_quiet() { None } else { Bar::on_terminal(Some(milliseconds(all)), template) };
        Self { output, bar, store: String::new(), done: Duration::ZERO, current: None }
    }

    /// Begins a store.
    pub(super) fn store(&mut self, label: &str) {
        label.clone_into(&mut self.store);
    }

    /// Begins a part.
    pub(super) fn begin_part(&mut self, part: Part, planned: Duration) {
        self.current = Some((part, planned, SystemClock.now()));
        if self.bar.is_none() {
            let about = duration::format(Duration::from_secs(planned.as_secs().max(1)));
            self.output.note(format_args!("{}: {}, about {about}", self.store, part.name()));
        }
        self.draw();
    }

    /// Ends the part.
    pub(super) fn end_part(&mut self) {
        if let Some((_, planned, _)) = self.current.take() {
            self.done += planned;
        }
        self.draw();
    }

    /// Draws the bar. A part that takes longer than planned does not move it.
    pub(super) fn draw(&self) {
        let Some(bar) = &self.bar else { return };
        let mut done = self.done;
        if let Some((part, planned, begin)) = self.current {
            let so_far = SystemClock.now().since(begin);
            done += so_far.min(planned);
            bar.set_message(format!("{}: {}, {:.0} s", self.store, part.name(), so_far.as_secs_f64()));
        }
        bar.set_position(milliseconds(done));
        bar.tick();
    }
}
