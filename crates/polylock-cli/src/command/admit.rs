//! `admit`.

use crate::{args::Global, exit::Failure, output::Output, store};

use super::is_confirmed;

/// Ends the start-up delay of the servers of a Redlock, after a confirmation.
pub(crate) async fn admit(global: &Global, yes: bool, output: &Output) -> Result<u8, Failure> {
    let store = store::choose(global, output)?;
    // A store other than Redlock, or an invalid URL, is refused before the question.
    store.config.clone().schema()?;
    let question = "This is only for servers that were never used for locks: a server that has lost its data may have forgotten \
                    locks that are held. Are all of these servers new?";
    if !yes && !is_confirmed(question, output)? {
        return Ok(0);
    }
    let servers = store.config.admit().await?;
    let line = |server: &String| {
        if output.is_text() {
            format!("{server}: its votes count now\n")
        } else {
            format!("{}\n", serde_json::json!({ "event": "admitted", "server": server }))
        }
    };
    output.data(&servers.iter().map(line).collect::<String>())?;
    if servers.is_empty() {
        output.note("the votes of all servers count already");
    }
    Ok(0)
}
