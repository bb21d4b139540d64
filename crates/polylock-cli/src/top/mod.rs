//! `top`: the locks of a store on the whole terminal, live.
//!
//! The display is a function of the watch's state and of the user's input (`app`), so tests draw it without a terminal (`view`).

mod app;
mod tree;
mod view;

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use polylock::{Clock, Locks, SystemClock, Watch};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyEvent},
};
use tokio::{sync::mpsc, task::JoinHandle};

use self::app::{Action, App, BreakOrder};
use crate::{
    args::Global,
    command::{break_text, nothing_broken, open, operator},
    exit::{Failure, INTERNAL, USAGE},
    output::{Output, capture_warnings},
    signals::{self, Signals},
};

/// The time between two frames without an event, in which the countdowns go on.
const FRAME_INTERVAL: Duration = Duration::from_millis(500);
/// The time after which the thread that reads the keyboard finds that the display has ended.
const KEY_TIMEOUT: Duration = Duration::from_millis(200);

/// Shows the locks until the user quits or a signal ends polylock.
pub(crate) async fn top(global: &Global, prefix: &str, output: &Output) -> Result<u8, Failure> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let problem = "top requires a terminal: use `polylock list` or `polylock watch` in a script";
        return Err(Failure::new(USAGE, problem));
    }
    let cannot = |what: &str, error: &io::Error| Failure::new(INTERNAL, format!("can't {what}: {error}"));
    let (locks, store) = open(global, output).await?;
    let watch = locks.watch(prefix).await?;
    let mut signals = Signals::listen().map_err(|error| cannot("listen for signals", &error))?;
    // A warning would be written over the display.
    capture_warnings();
    let is_colored = anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never;
    let app = App::new(store, is_colored);
    let mut terminal = ratatui::try_init().map_err(|error| cannot("use the terminal", &error))?;
    let ended = tokio::select! {
        biased;
        signal = signals.next_termination() => Ok(signals::exit_code(signal.as_raw())),
        result = display(&mut terminal, app, &locks, watch) => result.map(|()| 0),
    };
    ratatui::restore();
    ended.map_err(|error| cannot("use the terminal", &error))
}

/// Draws the state, and carries out the user's actions, until the user quits.
async fn display(
    terminal: &mut DefaultTerminal,
    mut app: App,
    locks: &Locks,
    mut watch: Watch,
) -> io::Result<()> {
    let mut keys = read_keys();
    let mut breaking: Option<JoinHandle<String>> = None;
    loop {
        let now = SystemClock.now();
        let rows = app.rows(watch.state(), now);
        terminal.draw(|frame| view::draw(frame, &app, &rows, watch.state(), now))?;
        tokio::select! {
            biased;
            key = keys.recv() => {
                let Some(key) = key else { return Err(io::Error::other("it can't be read")) };
                match app.on_key(key?, &rows) {
                    Action::None => {}
                    Action::Quit => return Ok(()),
                    Action::Refresh => watch.hurry(),
                    Action::Break(order) => breaking = Some(tokio::spawn(break_lock(locks.clone(), order))),
                }
            }
            result = async { breaking.as_mut().expect("it is some").await }, if breaking.is_some() => {
                breaking = None;
                app.message = Some(result.unwrap_or_else(|error| error.to_string()));
                watch.hurry();
            }
            _ = watch.refresh() => {}
            () = SystemClock.sleep_until(now + FRAME_INTERVAL) => {}
        }
    }
}

/// Breaks a lock. Returns the text of the result.
async fn break_lock(locks: Locks, order: BreakOrder) -> String {
    let by = operator();
    let mut breaking = locks.break_lock(&order.name).by(&by);
    for token in &order.tokens {
        breaking = breaking.token(*token);
    }
    if !order.reason.is_empty() {
        breaking = breaking.reason(&order.reason);
    }
    if order.force {
        breaking = breaking.force();
    }
    match breaking.await {
        Ok(broken) if broken.is_empty() => nothing_broken(&order.name, &order.tokens),
        Ok(broken) => {
            let texts = broken.iter().map(|entry| break_text(&order.name, entry, order.force, &by));
            texts.collect::<String>().trim_end().replace('\n', " ")
        }
        Err(error) => Failure::from(error).message,
    }
}

/// Reads the keyboard in a thread of its own, until the receiver is dropped.
fn read_keys() -> mpsc::UnboundedReceiver<io::Result<KeyEvent>> {
    let (sender, keys) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let key = match event::poll(KEY_TIMEOUT).and_then(|ready| ready.then(event::read).transpose()) {
                Ok(Some(Event::Key(key))) => Ok(key),
                // A resize is drawn with the next frame.
                Ok(_) => continue,
                Err(error) => Err(error),
            };
            let failed = key.is_err();
            if sender.send(key).is_err() || failed {
                return;
            }
        }
    });
    keys
}
