//! A holder that is stopped at the worst moment, for the examples of fences.
//!
//! The first holder is a separate process (the same program again), and SIGSTOP really stops it just after it has checked that it holds
//! the lock. No lock can help there: the process executes no instruction until it continues. Meanwhile its lease expires, and the second
//! holder, which does not know of the first, gets the lock and writes.
#![allow(clippy::future_not_send, reason = "each example runs these futures on its main thread")]

use std::{
    error::Error,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use polylock_core::{FencingToken, Guard};

pub(crate) type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// A resource with one value, the state of an order.
pub(crate) trait Order {
    async fn state(&self) -> Result<String>;

    /// Sets the state, with a check of this token, or without one. Returns the resource's refusal of a stale token.
    async fn set_state(&self, state: &str, token: Option<FencingToken>) -> Result<Result<(), String>>;
}

/// The arguments of an example.
#[derive(Debug)]
pub(crate) struct Arguments {
    /// The late write carries no token.
    pub(crate) is_unfenced: bool,
    /// This is the process of the first holder.
    pub(crate) is_first: bool,
    /// The flags of the example itself, and its URL.
    pub(crate) rest: Vec<String>,
}

impl Arguments {
    pub(crate) fn read() -> Self {
        let mut rest: Vec<String> = std::env::args().skip(1).collect();
        let mut flag = |name| rest.iter().position(|argument| argument == name).map(|at| rest.remove(at));
        let (is_unfenced, is_first) = (flag("--unfenced").is_some(), flag("--first").is_some());
        Self { is_unfenced, is_first, rest }
    }
}

/// The first holder, which is stopped at the worst moment.
pub(crate) async fn first(guard: Guard, order: &impl Order, arguments: &Arguments) -> Result<()> {
    println!(
        "A: I hold the lock with token {}; the order is {}",
        guard.fencing_token(),
        order.state().await?
    );
    guard.ensure_held()?;
    println!("A: I have checked that I hold it, and cancel the order now");
    signal("-STOP", std::process::id())?;
    let token = (!arguments.is_unfenced).then(|| guard.fencing_token());
    match order.set_state("cancelled", token).await? {
        Ok(()) => println!("A: done"),
        Err(refused) => println!("A: refused: {refused}"),
    }
    Ok(())
}

/// Runs the first holder with `more` arguments, and the second one when the first is stopped. Fails if the late write has landed.
pub(crate) async fn demonstrate(
    acquire: impl AsyncFnOnce() -> Result<Guard>,
    order: &impl Order,
    arguments: &Arguments,
    more: &[&str],
) -> Result<()> {
    let mut first = First::start(arguments, more)?;
    first.print_lines(2)?;
    let guard = acquire().await?;
    println!(
        "B: I hold the lock with token {}; the order is {}",
        guard.fencing_token(),
        order.state().await?
    );
    order.set_state("paid", Some(guard.fencing_token())).await??;
    println!("B: the order is paid");
    guard.release().await?;
    println!("   (A continues)");
    signal("-CONT", first.process.id())?;
    first.print_lines(1)?;
    let state = order.state().await?;
    if state != "paid" {
        return Err(format!("the order is {state}, but the last holder of the lock has paid it").into());
    }
    println!("the order is {state}, as the last holder of the lock wrote it");
    Ok(())
}

/// The process of the first holder. It is killed at the end, so that it is not left stopped.
struct First {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl First {
    fn start(arguments: &Arguments, more: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments.is_unfenced.then_some("--unfenced")).arg("--first").args(more);
        let mut process = command.stdout(Stdio::piped()).spawn()?;
        let output = process.stdout.take().ok_or("no output")?;
        Ok(Self { process, output: BufReader::new(output) })
    }

    /// Prints this many lines of its output.
    fn print_lines(&mut self, lines: usize) -> Result<()> {
        for _ in 0..lines {
            let mut line = String::new();
            if self.output.read_line(&mut line)? == 0 {
                return Err("the first holder has failed".into());
            }
            print!("{line}");
        }
        Ok(())
    }
}

impl Drop for First {
    fn drop(&mut self) {
        // It has ended, or is not needed any more.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn signal(signal: &str, process: u32) -> Result<()> {
    let sent = Command::new("kill").args([signal, &process.to_string()]).status()?;
    if sent.success() { Ok(()) } else { Err(format!("kill {signal}: {sent}").into()) }
}
