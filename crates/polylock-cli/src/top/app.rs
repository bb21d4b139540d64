//! The state of the display: the order, the filter, the selection, and the input of the user.

use std::{cmp::Reverse, time::Duration};

use polylock::{FencingToken, Label, LockName, LockStatus, Moment, Renewals, WatchState};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// The rows that a page key moves by.
const PAGE: usize = 10;

/// A column by which the locks are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Name,
    Held,
    Lease,
    Slack,
    Waiters,
}

impl Sort {
    const fn next(self) -> Self {
        match self {
            Self::Name => Self::Held,
            Self::Held => Self::Lease,
            Self::Lease => Self::Slack,
            Self::Slack => Self::Waiters,
            Self::Waiters => Self::Name,
        }
    }

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Held => "held",
            Self::Lease => "lease",
            Self::Slack => "slack",
            Self::Waiters => "waiters",
        }
    }
}

/// One lock.
#[derive(Debug, Clone)]
pub(super) struct Row {
    /// The status at the time of the frame.
    pub(super) status: LockStatus,
    /// The renewals of each holder.
    pub(super) renewals: Vec<Renewals>,
}

impl Row {
    pub(super) fn held(&self) -> Option<Duration> {
        self.status.holders.iter().map(|holder| holder.age).max()
    }

    /// Returns the rest of the lease that ends first, and the longest rest that was seen of it.
    pub(super) fn lease(&self) -> Option<(Duration, Duration)> {
        let holders = self.status.holders.iter().zip(&self.renewals);
        holders.map(|(holder, renewals)| (holder.expires_in, renewals.lease)).min()
    }

    pub(super) fn slack(&self) -> Option<Duration> {
        self.renewals.iter().filter_map(|renewals| renewals.slack).min()
    }

    fn contains(&self, text: &str) -> bool {
        let found = |field: &str| field.to_lowercase().contains(text);
        let mut entries = self.status.holders.iter().chain(&self.status.waiters);
        found(self.status.name.as_str())
            || entries.any(|entry| found(entry.owner.as_str()) || found(&entry.label))
    }
}

/// A break that the user has confirmed, or is about to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BreakOrder {
    pub(super) name: LockName,
    /// The holds that were shown when the order began.
    pub(super) tokens: Vec<FencingToken>,
    pub(super) reason: String,
    pub(super) force: bool,
}

/// The question that the last line asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Prompt {
    None,
    Filter,
    Reason(BreakOrder),
    Confirm(BreakOrder),
}

/// An action that a key requests.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    None,
    Quit,
    Refresh,
    Break(BreakOrder),
}

#[derive(Debug)]
pub(super) struct App {
    /// The store, without secrets.
    pub(super) store: String,
    pub(super) is_colored: bool,
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
    pub(super) filter: String,
    /// The selected lock stays selected while the order changes.
    selected: Option<LockName>,
    /// The index at which the selected lock was last, for when it is gone.
    last_index: usize,
    pub(super) shows_tree: bool,
    pub(super) prompt: Prompt,
    pub(super) message: Option<String>,
}

impl App {
    pub(super) fn new(store: String, is_colored: bool) -> Self {
        Self {
            store,
            is_colored,
            sort: Sort::Name,
            is_reversed: false,
            filter: String::new(),
            selected: None,
            last_index: 0,
            shows_tree: false,
            prompt: Prompt::None,
            message: None,
        }
    }

    /// Returns the locks that pass the filter, at `now`, in order.
    pub(super) fn rows(&self, state: &WatchState, now: Moment) -> Vec<Row> {
        let filter = self.filter.to_lowercase();
        let all =
            state.locks.values().map(|lock| Row { status: lock.at(now), renewals: lock.renewals.clone() });
        let mut rows: Vec<Row> = all.filter(|row| row.contains(&filter)).collect();
        // The locks are sorted by name, and remain so among equals: whole seconds, so that rows do not change places all the time.
        // The first ones are those of interest: the longest hold, the shortest rest.
        match self.sort {
            Sort::Name => {}
            Sort::Held => rows.sort_by_key(|row| Reverse(row.held())),
            Sort::Lease => rows.sort_by_key(|row| row.lease().map_or(u64::MAX, |lease| lease.0.as_secs())),
            Sort::Slack => rows.sort_by_key(|row| row.slack().map_or(u64::MAX, |slack| slack.as_secs())),
            Sort::Waiters => rows.sort_by_key(|row| Reverse(row.status.waiters.len())),
        }
        if self.is_reversed {
            rows.reverse();
        }
        rows
    }

    /// Returns the index of the selected row; `None` if there are no rows.
    pub(super) fn index(&self, rows: &[Row]) -> Option<usize> {
        let found =
            self.selected.as_ref().and_then(|name| rows.iter().position(|row| row.status.name == *name));
        found.or_else(|| Some(self.last_index.min(rows.len().checked_sub(1)?)))
    }

    fn select(&mut self, rows: &[Row], index: usize) {
        let index = index.min(rows.len().saturating_sub(1));
        self.last_index = index;
        self.selected = rows.get(index).map(|row| row.status.name.clone());
    }

    /// Processes a key. `rows` are those of the last frame.
    pub(super) fn on_key(&mut self, key: KeyEvent, rows: &[Row]) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::None;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Action::Quit } else { Action::None };
        }
        self.message = None;
        match std::mem::replace(&mut self.prompt, Prompt::None) {
            Prompt::None => self.on_command(key.code, rows),
            Prompt::Filter => self.on_filter(key.code),
            Prompt::Reason(order) => self.on_reason(key.code, order),
            Prompt::Confirm(order) if matches!(key.code, KeyCode::Char('y' | 'Y')) => Action::Break(order),
            Prompt::Confirm(_) => {
                self.message = Some("not broken".to_owned());
                Action::None
            }
        }
    }

    fn on_command(&mut self, key: KeyCode, rows: &[Row]) -> Action {
        let index = self.index(rows).unwrap_or(0);
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Char('r') => return Action::Refresh,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('S') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('w') => self.shows_tree = !self.shows_tree,
            KeyCode::Char('/') => self.prompt = Prompt::Filter,
            KeyCode::Down | KeyCode::Char('j') => self.select(rows, index + 1),
            KeyCode::Up | KeyCode::Char('k') => self.select(rows, index.saturating_sub(1)),
            KeyCode::PageDown => self.select(rows, index + PAGE),
            KeyCode::PageUp => self.select(rows, index.saturating_sub(PAGE)),
            KeyCode::Home => self.select(rows, 0),
            KeyCode::End => self.select(rows, usize::MAX),
            KeyCode::Char('b') => self.begin_break(rows, index),
            _ => {}
        }
        Action::None
    }

    fn begin_break(&mut self, rows: &[Row], index: usize) {
        match rows.get(index) {
            Some(row) if !row.status.holders.is_empty() => {
                // The order keeps its lock, whatever is selected until it is confirmed.
                self.select(rows, index);
                let name = row.status.name.clone();
                let tokens = row.status.holders.iter().filter_map(|holder| holder.token).collect();
                let order = BreakOrder { name, tokens, reason: String::new(), force: false };
                self.prompt = Prompt::Reason(order);
            }
            Some(row) => self.message = Some(format!("lock {} is not held", row.status.name)),
            None => {}
        }
    }

    fn on_filter(&mut self, key: KeyCode) -> Action {
        match key {
            KeyCode::Enter => return Action::None,
            KeyCode::Esc => {
                self.filter.clear();
                return Action::None;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
        self.prompt = Prompt::Filter;
        Action::None
    }

    fn on_reason(&mut self, key: KeyCode, mut order: BreakOrder) -> Action {
        match key {
            KeyCode::Enter => {
                self.prompt = Prompt::Confirm(order);
                return Action::None;
            }
            KeyCode::Esc => {
                self.message = Some("not broken".to_owned());
                return Action::None;
            }
            KeyCode::Tab => order.force = !order.force,
            KeyCode::Backspace => drop(order.reason.pop()),
            KeyCode::Char(letter) => {
                order.reason.push(letter);
                if Label::new(&order.reason).is_err() {
                    // It is too long.
                    order.reason.pop();
                }
            }
            _ => {}
        }
        self.prompt = Prompt::Reason(order);
        Action::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::view::tests::{at, locks};

    fn press(app: &mut App, rows: &[Row], keys: &str) -> Action {
        let mut last = Action::None;
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\t' => KeyCode::Tab,
                '\u{1b}' => KeyCode::Esc,
                '\u{8}' => KeyCode::Backspace,
                letter => KeyCode::Char(letter),
            };
            last = app.on_key(code.into(), rows);
        }
        last
    }

    fn names(rows: &[Row]) -> Vec<&str> {
        rows.iter().map(|row| row.status.name.as_str()).collect()
    }

    #[test]
    fn the_locks_are_sorted_and_filtered() {
        let (state, mut app) = (locks(), App::new(String::new(), false));
        let rows = |app: &App| app.rows(&state, at(0));
        assert_eq!(names(&rows(&app)), ["billing", "nightly", "orders/42"]);
        for (key, order) in [
            ("s", ["orders/42", "billing", "nightly"]),
            ("s", ["nightly", "billing", "orders/42"]),
            ("ss", ["orders/42", "billing", "nightly"]),
            ("S", ["nightly", "billing", "orders/42"]),
            ("sS", ["billing", "nightly", "orders/42"]),
        ] {
            press(&mut app, &[], key);
            assert_eq!(names(&rows(&app)), order, "{:?}", app.sort);
        }
        press(&mut app, &[], "/HOST-Cx\u{8}\n");
        assert_eq!(names(&rows(&app)), ["orders/42"], "an owner");
        press(&mut app, &[], "/\u{1b}");
        assert_eq!(rows(&app).len(), 3);
    }

    #[test]
    fn a_break_needs_a_confirmation_and_keeps_its_lock() {
        let (state, mut app) = (locks(), App::new(String::new(), false));
        let rows = app.rows(&state, at(0));
        press(&mut app, &rows, "jjjk");
        assert_eq!(app.index(&rows), Some(1));
        for cancelled in ["bq\u{1b}", "b\nn", "b\nq"] {
            assert_eq!(press(&mut app, &rows, cancelled), Action::None, "{cancelled:?}");
            assert_eq!(app.message.as_deref(), Some("not broken"));
        }
        let order = |force| BreakOrder {
            name: LockName::new("nightly").unwrap(),
            tokens: vec![FencingToken::new(3).unwrap(); 2],
            reason: "y!".into(),
            force,
        };
        assert_eq!(press(&mut app, &rows, "by!\n"), Action::None);
        // Other locks came meanwhile.
        assert_eq!(press(&mut app, &[], "y"), Action::Break(order(false)));
        assert_eq!(press(&mut app, &rows, "b\ty!\ny"), Action::Break(order(true)));
        assert_eq!(press(&mut app, &rows, "q"), Action::Quit);
    }

    #[test]
    fn the_selected_lock_stays_selected_while_the_order_changes() {
        let (state, mut app) = (locks(), App::new(String::new(), false));
        let rows = app.rows(&state, at(0));
        press(&mut app, &rows, "jj");
        press(&mut app, &rows, "s");
        let sorted = app.rows(&state, at(0));
        assert_eq!((app.index(&sorted), names(&sorted)[0]), (Some(0), "orders/42"));
        assert_eq!(app.index(&sorted[1..]), Some(1), "it is gone");
        assert_eq!(app.index(&[]), None);
    }
}
