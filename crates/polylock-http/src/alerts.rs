//! The notices of broken locks.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::StreamExt;
use polylock_core::{Clock, HoldAlerts, SystemClock};
use polylock_protocol::NameBody;

use crate::backend::HttpBackend;

/// The pause before the stream is opened again.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest silence of a server that sends heartbeats.
const MAX_SILENCE: Duration = Duration::from_secs(6);
/// The longest line, in bytes.
const MAX_LINE: usize = 16 * 1024;

/// Reads the stream of the server that is used, until the store is closed.
pub(crate) async fn read(backend: Weak<HttpBackend>, alerts: Arc<HoldAlerts>) {
    while let Some(server) = backend.upgrade().map(|backend| backend.servers.current()) {
        if let Ok(response) = server.alerts().await {
            let (mut chunks, mut line) = (response.bytes_stream(), Vec::new());
            while let Some(Some(Ok(chunk))) =
                SystemClock.before(SystemClock.now() + MAX_SILENCE, chunks.next()).await
            {
                line.extend_from_slice(&chunk);
                for text in complete_lines(&mut line) {
                    if let Some(name) =
                        serde_json::from_str(&text).ok().and_then(|body: NameBody| body.name().ok())
                    {
                        alerts.check(&name);
                    }
                }
                let moved =
                    backend.upgrade().is_none_or(|backend| !Arc::ptr_eq(&backend.servers.current(), &server));
                if moved || line.len() > MAX_LINE {
                    break;
                }
            }
        }
        SystemClock.sleep_until(SystemClock.now() + PAUSE).await;
    }
}

/// Takes the complete lines out of `bytes`.
fn complete_lines(bytes: &mut Vec<u8>) -> Vec<String> {
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let lines = String::from_utf8_lossy(&bytes[..end]).lines().map(str::to_owned).collect();
    bytes.drain(..end);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_may_arrive_in_parts() {
        let mut bytes = b"a\n\nb".to_vec();
        assert_eq!(complete_lines(&mut bytes), ["a", ""]);
        assert_eq!(complete_lines(&mut bytes), [""; 0]);
        bytes.extend_from_slice(b"c\n");
        assert_eq!(complete_lines(&mut bytes), ["bc"]);
        assert!(bytes.is_empty());
    }
}
