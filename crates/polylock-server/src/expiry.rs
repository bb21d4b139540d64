//! The expiry of a message: after it, the client has given the message up, and the server must not carry it out.
//!
//! A network may deliver a message long after its client has closed the connection, and other processes may have changed the lock since. So a client names
//! the time, by the clock of this server, until which its message counts. It knows that clock from earlier replies, and needs no clock of its own
//! that agrees with it. The messages to the store carry the same expiry, through [`time_limit`].

use http::HeaderMap;
use polylock_core::{Clock, Moment, SystemClock, time_limit};
use polylock_protocol::{EXPIRES, InvalidBody, InvalidServerTime, LATE, Problem, ServerTime};

use crate::{body::Refused, clock::ServerClock, service::Inner};

/// Returns the time at which the client gives the operation up, and refuses one that it has given up.
///
/// A client that reaches several servers at one address may name a time of each. One without a time of this server is refused: the reply has the clock
/// that the client needs to repeat it.
pub(crate) fn limit_of(service: &Inner, headers: &HeaderMap) -> Result<Moment, Refused> {
    let mut values = headers.get_all(EXPIRES).iter().peekable();
    if values.peek().is_none() {
        return Ok(Moment::NEVER);
    }
    let now = service.clock.now();
    let mut own = None;
    for value in values {
        let text = value.to_str().map_err(|_| InvalidBody::new(EXPIRES, "not a text"))?;
        for time in text.split(',') {
            let time: ServerTime = time
                .trim()
                .parse()
                .map_err(|error: InvalidServerTime| InvalidBody::new(EXPIRES, error.to_string()))?;
            if !time.has_passed(now) {
                own = Some(time);
            }
        }
    }
    own.map(ServerClock::moment).ok_or_else(late)
}

/// Returns the time at which the client gives up a message of the API for all languages, and refuses one that it has given up.
///
/// A message without an expiry counts from its arrival, because the server can't know how old it is. None counts for longer than a release refuses
/// claims: the client may have released the request on another server meanwhile.
pub(crate) fn api_limit_of(service: &Inner, headers: &HeaderMap) -> Result<Moment, Refused> {
    Ok(limit_of(service, headers)?.min(SystemClock.now() + time_limit::LONGEST))
}

/// Returns the refusal of a message that was not carried out in time.
pub(crate) fn late() -> Refused {
    let detail = "it has expired, and was not carried out: repeat it with the clock of this reply";
    Refused(Problem::new(LATE, "the operation is too late", 409, detail))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use polylock_core::memory;

    use super::*;
    use crate::Service;

    #[tokio::test]
    async fn the_time_of_this_server_counts() {
        let service = Service::new(memory::connect()).unwrap();
        let inner = service.inner();
        let now = inner.clock.now();
        let limit = |values: &[String]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(EXPIRES, value.parse().unwrap());
            }
            limit_of(inner, &headers).map_err(|Refused(problem)| problem.word().to_owned())
        };
        let own = |us: i64| ServerTime { us: now.us + us, ..now };
        let (later, other) = (own(5_000_000), ServerTime { server: !now.server, ..own(9_000_000) });
        assert_eq!(limit(&[]), Ok(Moment::NEVER));
        for values in [
            vec![later.to_string()],
            vec![format!("{other}, {later}")],
            vec![other.to_string(), later.to_string()],
        ] {
            assert_eq!(limit(&values), Ok(ServerClock::moment(later)), "{values:?}");
        }
        for values in [own(-1).to_string(), other.to_string(), format!("{other}, {}", own(-1))] {
            assert_eq!(limit(&[values]).unwrap_err(), LATE);
        }
        for values in ["", "5", "7;x", "7;1;", ","] {
            assert_eq!(limit(&[values.to_owned()]).unwrap_err(), "invalid-body", "{values:?}");
        }
    }
}
