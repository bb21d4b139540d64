//! The announcement of breaks: one node below the root, which each session watches.
//!
//! A break writes its notice there in the transaction that marks or deletes the holders' nodes. So a holder is notified at once,
//! and one whose node was deleted by force still finds out by whom and why. One watch for a session, and not one for each hold,
//! because breaks are rare and acquisitions are not: an acquisition or a renewal sends no packet more for it.
//!
//! The node holds the last breaks up to [`LIMIT`], so it never grows beyond that.

use std::sync::{Arc, Weak};

use percent_encoding::{percent_decode_str, utf8_percent_encode};
use polylock_core::{BreakNotice, HoldAlerts, LockName};
use zookeeper_client::{Error as Failure, OneshotWatcher};

use crate::{
    config::{Access, Config},
    error::{Outcome, outcome},
    nodes::{self, ENCODED, Guid},
    session::{Session, pause},
};

/// The most bytes of the node's data. The oldest breaks are dropped first.
const LIMIT: usize = 64 * 1024;

/// The name of the node. No lock has it: the name of a lock's node has no dot.
const NAME: &str = ".breaks";

/// The node that announces the breaks of those with the same access: who may not read another user's locks need not know of their
/// breaks either.
pub(crate) fn node(config: &Config) -> String {
    let user = config.credentials.as_ref().filter(|_| config.access() == Access::Creator);
    let user = user.map(|(user, _)| format!("-{}", utf8_percent_encode(user, ENCODED))).unwrap_or_default();
    format!("{}/{NAME}{user}", config.root)
}

/// The breaks that were announced last, oldest first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Breaks(Vec<Announced>);

/// The break of some holds of one lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announced {
    pub(crate) lock: LockName,
    pub(crate) notice: BreakNotice,
    /// The nodes of the holders.
    pub(crate) requests: Vec<Guid>,
}

impl Breaks {
    /// Reads what [`to_bytes`](Self::to_bytes) has written. Never fails: others can write there, too.
    pub(crate) fn parse(data: &[u8]) -> Self {
        Self(str::from_utf8(data).unwrap_or_default().lines().filter_map(Announced::parse).collect())
    }

    /// The notice for the holder whose node this is. Of two, the first one counts.
    pub(crate) fn notice(&self, request: Guid) -> Option<BreakNotice> {
        self.0.iter().find(|one| one.requests.contains(&request)).map(|one| one.notice.clone())
    }

    pub(crate) fn add(&mut self, announced: Announced) {
        self.0.push(announced);
    }

    /// One line for each, and no more than [`LIMIT`].
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut lines: Vec<String> = Vec::new();
        let mut left = LIMIT;
        for one in self.0.iter().rev() {
            let line = one.line(left);
            let Some(rest) = line.as_ref().and_then(|line| left.checked_sub(line.len())) else { break };
            left = rest;
            lines.extend(line);
        }
        lines.reverse();
        lines.concat().into_bytes()
    }
}

impl Announced {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(3, ' ');
        let lock = nodes::lock(fields.next()?)?;
        let notice = percent_decode_str(fields.next()?).decode_utf8().ok()?;
        let requests = fields.next()?.split(',').map(Guid::parse).collect::<Option<_>>()?;
        Some(Self { lock, notice: BreakNotice::from_text(&notice), requests })
    }

    /// At most as long as `limit`, with as many of its requests as have space; `None` if none has.
    fn line(&self, limit: usize) -> Option<String> {
        let notice = self.notice.to_text();
        let mut line = format!(
            "{} {} ",
            utf8_percent_encode(self.lock.as_str(), ENCODED),
            utf8_percent_encode(&notice, ENCODED)
        );
        let each = Guid::DIGITS + 1;
        let space = limit.checked_sub(line.len())? / each;
        let requests: Vec<_> = self.requests.iter().take(space).map(Guid::to_string).collect();
        if requests.is_empty() {
            return None;
        }
        line.push_str(&requests.join(","));
        line.push('\n');
        Some(line)
    }
}

/// Has core renew the holds of this session that are broken, as soon as their breaks are announced. Ends with the session.
///
/// It does not keep the session open.
pub(crate) async fn follow(session: Weak<Session>, alerts: Arc<HoldAlerts>) {
    while let Some(current) = session.upgrade() {
        match watched(&current).await {
            Ok((breaks, watcher)) => {
                let ours = breaks.0.iter().filter(|one| one.requests.iter().any(|guid| current.knows(*guid)));
                ours.for_each(|one| alerts.check(&one.lock));
                drop(current);
                watcher.changed().await;
            }
            Err(error) => match outcome(&error) {
                Outcome::Ended => return,
                Outcome::Unknown => {
                    drop(current);
                    pause().await;
                }
                Outcome::Refused => {
                    tracing::warn!(
                        node = current.breaks,
                        error = &error as &dyn std::error::Error,
                        "breaks can't be watched: holders find them with their next renewal",
                    );
                    return;
                }
            },
        }
    }
}

/// The breaks as they are, and what waits for their next change.
async fn watched(session: &Session) -> Result<(Breaks, OneshotWatcher), Failure> {
    // A node that is not there yet is watched, too. What is read behind that is not older.
    let (stat, watcher) = session.client.check_and_watch_stat(&session.breaks).await?;
    let breaks = if stat.is_some() { session.breaks().await? } else { Breaks::default() };
    Ok((breaks, watcher))
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylock_core::{Label, OwnerId};

    fn announced(requests: usize) -> Announced {
        let by = OwnerId::new("me @ host,1").unwrap();
        Announced {
            lock: LockName::new("a b/ü\nc").unwrap(),
            notice: BreakNotice::new(by, Some(Label::new("it hangs, 100 %").unwrap())),
            requests: (0..requests).map(|_| Guid::random()).collect(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut breaks = Breaks::default();
        breaks.add(announced(1));
        breaks.add(Announced { notice: BreakNotice::default(), ..announced(3) });
        assert_eq!(Breaks::parse(&breaks.to_bytes()), breaks);
        for one in &breaks.0 {
            for request in &one.requests {
                assert_eq!(breaks.notice(*request).as_ref(), Some(&one.notice));
            }
        }
        assert_eq!(breaks.notice(Guid::random()), None);
    }

    #[test]
    fn the_first_notice_counts() {
        let (first, mut second) = (announced(1), announced(1));
        second.requests.clone_from(&first.requests);
        second.notice = BreakNotice::default();
        let mut breaks = Breaks::default();
        breaks.add(first.clone());
        breaks.add(second);
        assert_eq!(breaks.notice(first.requests[0]), Some(first.notice));
    }

    #[test]
    fn the_newest_are_kept_within_the_limit() {
        let mut breaks = Breaks::default();
        for _ in 0..2000 {
            breaks.add(announced(1));
        }
        let newest = announced(1);
        breaks.add(newest.clone());
        let bytes = breaks.to_bytes();
        assert!(bytes.len() <= LIMIT && bytes.len() > LIMIT / 2, "{}", bytes.len());
        assert_eq!(Breaks::parse(&bytes).0.last(), Some(&newest));
        // One break of more holders than there is space for.
        breaks.add(announced(10_000));
        let bytes = breaks.to_bytes();
        assert!(bytes.len() <= LIMIT && bytes.len() > LIMIT / 2, "{}", bytes.len());
        assert!(Breaks::parse(&bytes).0.last().is_some_and(|last| last.requests.len() > 1000));
    }

    #[test]
    fn what_others_wrote_is_passed_over() {
        let one = announced(1);
        let line = one.line(LIMIT).unwrap();
        let text = format!("x\n\n{} y\n% % %\n{line}a b c d", "é".repeat(20));
        assert_eq!(Breaks::parse(text.as_bytes()), Breaks(vec![one]));
        assert_eq!(Breaks::parse(b"\xff\xfe"), Breaks::default());
    }

    #[test]
    fn users_have_nodes_of_their_own_where_each_sees_its_locks_alone() {
        let of = |url: &str| node(&Config::new(url).unwrap());
        assert_eq!(of("zk://h/r"), "/r/.breaks");
        assert_eq!(of("zk://a%2Fb:p@h/r"), "/r/.breaks-a%2Fb");
        assert_eq!(of("zk://a:p@h/r?polylock.access=open"), "/r/.breaks");
        assert_eq!(nodes::lock(".breaks-a%2Fb"), None);
    }
}
