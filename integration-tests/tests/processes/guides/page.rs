//! The code blocks of a page, by their fences.
//!
//! | fence | meaning |
//! |---|---|
//! | `console`, `console postgres`, `console pgbouncer` | a session in a shell, with the locks in SQLite or on that server |
//! | `sh NAME`, `python NAME`, `sql NAME` | the contents of a file that the later sessions of the page find |
//! | `cron` | lines of a crontab, whose commands are in a session of the page |
//! | `sh` | commands that install polylock, which `packaging/test.sh` runs |
//! | `rust`, `rust,no_run` | an example that is compiled as a test of the documentation |
//! | `text` | a text that no test runs |

/// A block of code.
#[derive(Debug)]
pub(super) struct Block {
    /// The line of the opening fence.
    pub(super) line: usize,
    pub(super) kind: Kind,
    pub(super) text: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Session(Store),
    File(String),
    Crontab,
    Install,
    Rust,
    Text,
}

/// The store of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Store {
    Sqlite,
    Postgres,
    PgBouncer,
}

/// A command of a session, and its output.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) command: String,
    pub(super) output: Vec<String>,
}

/// Returns the blocks of a page.
///
/// # Errors
/// If a block has an unknown fence, or does not end.
pub(super) fn blocks(page: &str) -> Result<Vec<Block>, String> {
    let (mut blocks, mut lines) = (Vec::new(), page.lines().enumerate());
    while let Some((number, line)) = lines.next() {
        let Some(fence) = line.strip_prefix("```") else { continue };
        let line = number + 1;
        let kind = kind(fence).ok_or_else(|| format!("line {line}: unknown block {fence:?}"))?;
        let mut text = String::new();
        loop {
            match lines.next() {
                Some((_, "```")) => break,
                Some((_, inside)) => text += &format!("{inside}\n"),
                None => return Err(format!("line {line}: the block does not end")),
            }
        }
        blocks.push(Block { line, kind, text });
    }
    Ok(blocks)
}

fn kind(fence: &str) -> Option<Kind> {
    Some(match *fence.split(' ').collect::<Vec<_>>() {
        ["console"] => Kind::Session(Store::Sqlite),
        ["console", "postgres"] => Kind::Session(Store::Postgres),
        ["console", "pgbouncer"] => Kind::Session(Store::PgBouncer),
        ["sh" | "python" | "sql", name] => Kind::File(name.to_owned()),
        ["cron"] => Kind::Crontab,
        ["sh"] => Kind::Install,
        ["rust" | "rust,no_run"] => Kind::Rust,
        ["text"] => Kind::Text,
        _ => return None,
    })
}

/// Returns the steps of a session. A command begins with `$ `, its further lines with `> `.
///
/// # Errors
/// If the session begins with output.
pub(super) fn steps(text: &str) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), output: Vec::new() });
            continue;
        }
        let step = steps.last_mut().ok_or_else(|| format!("output before the first command: {line}"))?;
        match line.strip_prefix("> ") {
            Some(more) if step.output.is_empty() => step.command += &format!("\n{more}"),
            _ => step.output.push(line.to_owned()),
        }
    }
    Ok(steps)
}

/// Returns the commands in the lines of a crontab, without the five fields of the time.
pub(super) fn cron_commands(text: &str) -> Vec<&str> {
    let lines = text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit() || c == '*'));
    lines.filter_map(|line| line.splitn(6, ' ').nth(5)).collect()
}
