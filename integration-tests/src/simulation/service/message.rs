//! The messages of the clients, as they appear on a connection.

use polylock_protocol::EXPIRES;
use serde_json::Value;

/// A message of a client.
#[derive(Debug)]
pub struct Message {
    /// The path of the operation.
    pub path: String,
    /// True if it names its expiry: claims do in their bodies.
    pub expires: bool,
    /// The JSON of its body; `Null` without one.
    pub body: Value,
}

/// Takes the first message out of `bytes`; `None` if it is not complete.
pub fn take(bytes: &mut Vec<u8>) -> Option<Message> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.lines();
    let target = lines.next()?.split(' ').nth(1)?;
    let path = target.find("/v1/").map_or(target, |at| &target[at..]).to_owned();
    let headers: Vec<_> = lines.filter_map(|line| line.split_once(": ")).collect();
    let value = |name: &str| {
        headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    };
    let length: usize = value("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let expires = value(EXPIRES).is_some();
    if bytes.len() < end + length {
        return None;
    }
    let body: Value = serde_json::from_slice(&bytes[end..end + length]).unwrap_or(Value::Null);
    let expires = expires || body.get("expires").is_some();
    bytes.drain(..end + length);
    Some(Message { path, expires, body })
}

impl Message {
    /// Returns the request, if the message concerns one.
    #[must_use]
    pub fn request(&self) -> Option<&Value> {
        let request = self.body.get("request").unwrap_or(&self.body);
        request.get("id").is_some().then_some(request)
    }

    /// Returns the message in a readable form.
    #[must_use]
    pub fn shown(&self) -> String {
        let name = self.request().unwrap_or(&self.body).get("name").and_then(Value::as_str).unwrap_or("");
        let owner = self.request().and_then(|it| it.get("owner")).and_then(Value::as_str).unwrap_or("");
        format!("{} {name} {owner}", self.path)
    }
}
