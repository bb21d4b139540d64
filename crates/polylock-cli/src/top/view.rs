//! Draws the display.

use std::time::Duration;

use anstream::adapter::strip_str;
use polylock::{Entry, Moment, WatchState};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Borders, Paragraph, Row as TableRow, Table, TableState, Wrap},
};

use super::{
    app::{App, Prompt, Row},
    tree,
};
use crate::output::{lock_text, seconds};

/// The height of the details of the selected lock, with their title.
const DETAILS: u16 = 8;
/// The part of a lease below which its rest is marked.
const SHORT_LEASE: u32 = 4;

pub(super) fn draw(frame: &mut Frame<'_>, app: &App, rows: &[Row], state: &WatchState, now: Moment) {
    let is_long = app.prompt != Prompt::None || app.message.is_some();
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(4),
        Constraint::Length(if app.shows_tree { 0 } else { DETAILS }),
        Constraint::Length(if is_long { 2 } else { 1 }),
    ]);
    let [title, main, details, bottom] = areas.areas(frame.area());
    let colors = Colors(app.is_colored);
    frame.render_widget(title_line(app, state, now, colors), title);
    if app.shows_tree {
        let lines = tree::lines(rows.iter().map(|row| &row.status));
        let lines = if lines.is_empty() { vec!["nobody waits".to_owned()] } else { lines };
        let block = Block::new().borders(Borders::TOP).title(" waiting for each other ");
        frame.render_widget(fitting(lines, main).block(block), main);
    } else {
        let selected = app.index(rows);
        let mut table_state = TableState::default().with_selected(selected);
        frame.render_stateful_widget(table(rows, colors), main, &mut table_state);
        let row = selected.and_then(|index| rows.get(index));
        let title = row.map_or_else(String::new, |row| format!(" {} ", row.status.name));
        let text = row.map(|row| strip_str(&lock_text(&row.status)).to_string()).unwrap_or_default();
        // The first line repeats the name.
        let lines = text.lines().skip(1).map(|line| line.trim_start().to_owned()).collect();
        let block = Block::new().borders(Borders::TOP).title(title);
        frame.render_widget(fitting(lines, details).block(block), details);
    }
    frame.render_widget(Paragraph::new(bottom_line(app)).wrap(Wrap { trim: false }), bottom);
}

/// The styles, with colours only if they are enabled.
#[derive(Debug, Clone, Copy)]
struct Colors(bool);

impl Colors {
    fn of(self, color: Color) -> Style {
        if self.0 { Style::new().fg(color) } else { Style::new() }
    }
}

fn title_line(app: &App, state: &WatchState, now: Moment, colors: Colors) -> Line<'static> {
    let held = state.locks.values().filter(|lock| !lock.status.holders.is_empty()).count();
    let waiting: usize = state.locks.values().map(|lock| lock.status.waiters.len()).sum();
    let mut line = vec![
        Span::styled("polylock top", Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(format!("  {held} held, {waiting} waiting  ")),
    ];
    line.push(match &state.outage {
        Some(outage) => Span::styled(
            format!("UNAVAILABLE for {}: {}", seconds(now.since(outage.since)), outage.error),
            colors.of(Color::Red).add_modifier(Modifier::BOLD),
        ),
        None => Span::raw(format!("read {} ago  {}", seconds(now.since(state.read_at)), app.store)),
    });
    Line::from(line)
}

fn table<'a>(rows: &'a [Row], colors: Colors) -> Table<'a> {
    let header = TableRow::new(["LOCK", "MODE", "HELD", "LEASE", "SLACK", "WAIT", "HOLDER"])
        .style(Style::new().add_modifier(Modifier::REVERSED));
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(4),
        Constraint::Length(6),
        Constraint::Length(12),
        Constraint::Length(6),
        Constraint::Length(4),
        Constraint::Fill(1),
    ];
    Table::new(rows.iter().map(|row| table_row(row, colors)), widths)
        .header(header)
        .highlight_symbol("> ")
        .row_highlight_style(Style::new().add_modifier(Modifier::BOLD))
}

fn table_row(row: &Row, colors: Colors) -> TableRow<'_> {
    let status = &row.status;
    let is_short = row.lease().is_some_and(|(left, lease)| left < lease / SHORT_LEASE);
    let lease = row.lease().map(|(left, lease)| format!("{}/{}", short(left), short(lease)));
    let is_broken = status.holders.iter().any(|holder| holder.broken.is_some());
    let holder = match status.holders.as_slice() {
        [] => "-".to_owned(),
        [holder] => short_owner(holder),
        [holder, others @ ..] => format!("{} +{}", short_owner(holder), others.len()),
    };
    let waiters = status.waiters.len();
    let waiting = colors.of(Color::Yellow);
    let cells = [
        Span::raw(status.name.to_string()),
        Span::raw(status.holders.first().map_or("-", |holder| holder.mode.code())),
        Span::raw(row.held().map_or_else(|| "-".to_owned(), short)),
        Span::styled(
            lease.unwrap_or_else(|| "-".to_owned()),
            if is_short { colors.of(Color::Red) } else { Style::new() },
        ),
        Span::raw(row.slack().map_or_else(|| "-".to_owned(), short)),
        Span::styled(waiters.to_string(), if waiters > 0 { waiting } else { Style::new() }),
        Span::styled(
            if is_broken { format!("broken: {holder}") } else { holder },
            if is_broken { colors.of(Color::Red) } else { Style::new() },
        ),
    ];
    TableRow::new(cells.map(Line::from))
}

fn bottom_line(app: &App) -> Line<'_> {
    let bold = |text: &'static str| Span::styled(text, Style::new().add_modifier(Modifier::BOLD));
    match (&app.prompt, &app.message) {
        (Prompt::Filter, _) => Line::from(vec![bold("filter: "), Span::raw(format!("{}_", app.filter))]),
        (Prompt::Reason(order), _) => {
            let force = if order.force { "BY FORCE" } else { "its holder stops" };
            let keys = "   Enter: go on, Tab: force, Esc: cancel";
            let text = format!("{} ({force}), reason: {}_{keys}", order.name, order.reason);
            Line::from(vec![bold("break "), Span::raw(text)])
        }
        (Prompt::Confirm(order), _) => {
            let force = if order.force { " BY FORCE: its holder may still work" } else { "" };
            Line::from(vec![
                bold("break "),
                Span::raw(format!("{}{force}? y: yes, any other key: no", order.name)),
            ])
        }
        (Prompt::None, Some(message)) => Line::from(message.as_str()),
        (Prompt::None, None) => {
            let order = if app.is_reversed { " reversed" } else { "" };
            let filter =
                if app.filter.is_empty() { String::new() } else { format!("  [filter: {}]", app.filter) };
            Line::from(format!(
                "q quit  s sort [{}{order}]  / filter{filter}  w waits  b break  r read now",
                app.sort.word()
            ))
        }
    }
}

/// Returns the lines that fit when long ones are wrapped, and the number of the others.
fn fitting(lines: Vec<String>, area: Rect) -> Paragraph<'static> {
    let (width, height) = (usize::from(area.width).max(1), usize::from(area.height).saturating_sub(1).max(1));
    let heights: Vec<usize> = lines.iter().map(|line| line.chars().count().div_ceil(width).max(1)).collect();
    let total = lines.len();
    let limit = if heights.iter().sum::<usize>() > height { height - 1 } else { height };
    let fits = heights.iter().scan(0, |used, lines| {
        *used += lines;
        (*used <= limit).then_some(())
    });
    let shown = fits.count();
    let mut text: Vec<Line<'static>> = lines.into_iter().take(shown).map(Line::from).collect();
    if shown < total {
        text.push(Line::from(format!("... and {} more", total - shown)));
    }
    Paragraph::new(text).wrap(Wrap { trim: false })
}

/// Returns the owner without the part that distinguishes runs of one process, and the label.
fn short_owner(entry: &Entry) -> String {
    let owner = entry.owner.as_str().split('/').next().unwrap_or_default();
    if entry.label.is_empty() { owner.to_owned() } else { format!("{owner} {}", entry.label) }
}

/// Returns a time in at most six characters: `12s`, `2m03s`, `5h07m`, `12d`.
fn short(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        seconds @ 3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use polylock::{BreakNotice, FencingToken, Label, LockName, LockStatus, Mode, OwnerId, WatchedLock};
    use ratatui::{Terminal, backend::TestBackend, crossterm::event::KeyCode};

    use super::*;

    pub(in crate::top) fn at(seconds: u64) -> Moment {
        Moment::from_nanos(0) + Duration::from_secs(1000 + seconds)
    }

    fn entry(owner: &str, label: &str, token: Option<i64>, age: u64, left: u64) -> Entry {
        let (owner, token) = (OwnerId::new(owner).unwrap(), token.and_then(FencingToken::new));
        Entry::new(Mode::Exclusive, owner, label, token, Duration::from_secs(age), Duration::from_secs(left))
    }

    /// Returns three locks: a lock with a queue, one whose holder waits for the first, and one with a broken holder.
    pub(in crate::top) fn locks() -> WatchState {
        let mut state = WatchState::default();
        state.read_at = at(0);
        let mut add = |name: &str, holders: Vec<Entry>, waiters| {
            let status = LockStatus::new(LockName::new(name).unwrap(), holders, waiters);
            let mut before = status.clone();
            before.holders.iter_mut().for_each(|holder| holder.expires_in = Duration::from_secs(12));
            let before = WatchedLock::new(before, at(0) - Duration::from_secs(10), None);
            let lock = WatchedLock::new(status, at(0), Some(&before));
            state.locks.insert(lock.status.name.clone(), Arc::new(lock));
        };
        let queue = vec![entry("host-b:1/77", "", None, 21, 4), entry("host-c:5", "import", None, 4, 4)];
        add("orders/42", vec![entry("host-a:4711/bb5e079ad8", "nightly report", Some(41), 125, 28)], queue);
        let holder = entry("host-b:1/77", "invoices", Some(7), 60, 20);
        add("billing", vec![holder], vec![entry("host-f:9", "", None, 2, 5)]);
        let by =
            BreakNotice::new(OwnerId::new("eva@host-c:3").unwrap(), Some(Label::new("it hangs").unwrap()));
        let shared = entry("host-d:2", "", Some(3), 3, 1);
        add("nightly", vec![shared.clone().broken(Some(by)), shared], Vec::new());
        state
    }

    fn screen(app: &App, state: &WatchState, now: Moment, size: (u16, u16)) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
        let rows = app.rows(state, now);
        terminal.draw(|frame| draw(frame, app, &rows, state, now)).unwrap();
        let text = terminal.backend().to_string();
        text.lines().map(|line| line.trim_matches('"').trim_end().to_owned()).collect()
    }

    fn app() -> App {
        App::new("sqlite:///var/lib/locks.db".to_owned(), false)
    }

    #[test]
    fn the_locks_and_the_selected_queue_fit_on_80_by_24() {
        let (mut app, state) = (app(), locks());
        app.on_key(KeyCode::End.into(), &app.rows(&state, at(0)));
        let screen = screen(&app, &state, at(1), (80, 24));
        assert_eq!(
            screen[..5],
            [
                "polylock top  3 held, 3 waiting  read 1s ago  sqlite:///var/lib/locks.db",
                "  LOCK                 MODE HELD   LEASE        SLACK  WAIT HOLDER",
                "  billing              EX   1m01s  19s/20s      2s     1    host-b:1 invoices",
                "  nightly              EX   4s     0s/12s       -      0    broken: host-d:2 +1",
                "> orders/42            EX   2m06s  27s/28s      2s     2    host-a:4711 nightly",
            ]
        );
        assert!(screen[15].starts_with(" orders/42 ───"), "{screen:?}");
        assert_eq!(
            screen[16..20],
            [
                "held by host-a:4711/bb5e079ad8 (nightly report), token 41, EX, for 2m 6s, lease",
                "27s",
                "1st in line: host-b:1/77, EX, for 22s",
                "2nd in line: host-c:5 (import), EX, for 5s",
            ]
        );
        assert_eq!(screen[23], "q quit  s sort [name]  / filter  w waits  b break  r read now");
    }

    #[test]
    fn the_tree_shows_the_waiters_below_the_owners_that_they_wait_for() {
        let (mut app, state) = (app(), locks());
        app.on_key(KeyCode::Char('w').into(), &[]);
        assert_eq!(
            screen(&app, &state, at(1), (80, 24))[2..6],
            [
                "host-a:4711/bb5e079ad8 (nightly report)",
                "├ orders/42: host-b:1/77, EX, for 22s",
                "│ └ billing: host-f:9, EX, for 3s",
                "└ orders/42: host-c:5 (import), EX, for 5s",
            ]
        );
    }

    #[test]
    fn a_long_queue_is_cut_and_a_small_terminal_is_no_problem() {
        let (app, mut state) = (app(), locks());
        let waiters = (0..50).map(|number| entry(&format!("host-{number}:1"), "", None, 3, 3)).collect();
        let status = LockStatus::new(LockName::new("a").unwrap(), Vec::new(), waiters);
        state.locks.insert(status.name.clone(), Arc::new(WatchedLock::new(status, at(0), None)));
        let screen_of = |size| screen(&app, &state, at(0), size);
        let screen = screen_of((80, 24));
        assert_eq!(
            (screen[21].as_str(), screen[22].as_str()),
            ("6th in line: host-5:1, EX, for 3s", "... and 44 more")
        );
        for size in [(1, 1), (20, 5), (300, 3)] {
            screen_of(size);
        }
    }
}
