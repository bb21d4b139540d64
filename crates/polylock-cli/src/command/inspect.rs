//! `status` and `list`.

use polylock::{Error, LockName, LockStatus};

use super::open;
use crate::{
    args::{Format, Global},
    exit::{Failure, NOT_ACQUIRED},
    output::{Output, Recipes, last_run_text, lock_object, lock_text, semaphore_text},
};

/// Prints the status of one lock. With `exit_code`, the result shows that the lock has a holder.
pub(crate) async fn status(
    global: &Global,
    name: &str,
    exit_code: bool,
    output: &Output,
) -> Result<u8, Failure> {
    let name = LockName::new(name)?;
    let (locks, store) = open(global, output).await?;
    let (status, semaphore) = (locks.inspect(&name).await?, locks.inspect_semaphore(&name).await?);
    let last_run = match locks.once(&name).last_run().await {
        Err(Error::Unsupported { .. }) => None,
        last_run => last_run?,
    };
    output.data(&match output.format {
        Format::Text | Format::Markdown => {
            let run = last_run.as_ref().map(last_run_text).unwrap_or_default();
            format!("{}{}{run}  store: {store}\n", lock_text(&status), semaphore_text(&semaphore))
        }
        Format::Json | Format::Jsonl => {
            let recipes = Recipes { semaphore: Some(&semaphore), last_run: last_run.as_ref() };
            format!("{}\n", lock_object(&status, recipes, locks.capabilities().backend, &store))
        }
    })?;
    let is_held = !status.holders.is_empty() || !semaphore.held.is_empty();
    Ok(if exit_code && is_held { NOT_ACQUIRED } else { 0 })
}

/// Prints the status of all locks in use.
pub(crate) async fn list(global: &Global, prefix: &str, output: &Output) -> Result<u8, Failure> {
    let (locks, store) = open(global, output).await?;
    let all = locks.list(prefix).await?;
    let object =
        |status: &LockStatus| lock_object(status, Recipes::default(), locks.capabilities().backend, &store);
    let text = match output.format {
        Format::Text | Format::Markdown => all.iter().map(lock_text).collect(),
        Format::Jsonl => all.iter().map(|status| object(status) + "\n").collect(),
        Format::Json if all.is_empty() => "[]\n".to_owned(),
        Format::Json => format!("[\n{}\n]\n", all.iter().map(object).collect::<Vec<_>>().join(",\n")),
    };
    output.data(&text)?;
    match all.is_empty() {
        true if prefix.contains(['*', '?']) => output.note(format!(
            "no lock has a name that begins with {prefix:?}, which is not a pattern: write the beginning of a name"
        )),
        true => output.detail("no lock is in use"),
        false => {}
    }
    Ok(0)
}
