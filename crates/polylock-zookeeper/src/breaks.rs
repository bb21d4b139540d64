//! The announcement of breaks: one node below the root, which each session watches.
//!
//! A break writes its notice to this node in the transaction that marks or deletes the holders' nodes. So a holder is notified at once,
//! and a holder with a deleted node still finds the notice. There is one watch for each session, not one for each hold, because breaks
//! are rare and acquisitions are frequent: an acquisition or a renewal needs no extra packet.
//!
//! The node keeps the newest breaks, [`LIMIT`] bytes at most.

use std::sync::{Arc, Weak};

use percent_encoding::{percent_decode_str, utf8_percent_encode};
use polylock_core::{BreakNotice, HoldAlerts, LockName};
use zookeeper_client::Error as Failure;

use crate::{
    client::OneshotWatcher,
    config::{Access, Config},
    error::{Outcome, outcome},
    nodes::{self, ENCODED, Guid},
    session::{Session, none_if_missing, pause},
};

/// The maximum size of the node's data in bytes. The oldest breaks are dropped first.
const LIMIT: usize = 64 * 1024;

/// The name of the node. It is never the name of a lock's node, which has no dot.
const NAME: &str = ".breaks";

/// Returns the path of the node that announces breaks to sessions with the same access: a session that may not read the locks of another
/// user does not receive their breaks either.
pub(crate) fn node(config: &Config) -> String {
    let user = config.credentials.as_ref().filter(|_| config.access() == Access::Creator);
    let user = user.map(|(user, _)| format!("-{}", utf8_percent_encode(user, ENCODED))).unwrap_or_default();
    format!("{}/{NAME}{user}", config.root)
}

/// The newest breaks, oldest first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Breaks(Vec<Announcement>);

/// A break of some holds of one lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) lock: LockName,
    pub(crate) notice: BreakNotice,
    /// The nodes of the holders.
    pub(crate) requests: Vec<Guid>,
}

impl Breaks {
    /// Returns the newest breaks, as `session` sees them.
    pub(crate) async fn read(session: &Session) -> Result<Self, Failure> {
        let seen = none_if_missing(session.client.get_data(&session.breaks).await)?;
        Ok(seen.map(|(data, _)| Self::parse(&data)).unwrap_or_default())
    }

    /// Parses the output of [`to_bytes`](Self::to_bytes). It never fails and skips invalid lines, because other programs can write to the
    /// node, too.
    pub(crate) fn parse(data: &[u8]) -> Self {
        Self(str::from_utf8(data).unwrap_or_default().lines().filter_map(Announcement::parse).collect())
    }

    /// Returns the notice for the holder with this node. The first of several notices counts.
    pub(crate) fn notice(&self, request: Guid) -> Option<BreakNotice> {
        self.0.iter().find(|one| one.requests.contains(&request)).map(|one| one.notice.clone())
    }

    pub(crate) fn add(&mut self, announcement: Announcement) {
        self.0.push(announcement);
    }

    /// Returns one line for each break, [`LIMIT`] bytes at most.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut lines: Vec<String> = Vec::new();
        let mut space = LIMIT;
        for one in self.0.iter().rev() {
            let line = one.line(space);
            let Some(rest) = line.as_ref().and_then(|line| space.checked_sub(line.len())) else { break };
            space = rest;
            lines.extend(line);
        }
        lines.reverse();
        lines.concat().into_bytes()
    }
}

impl Announcement {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(3, ' ');
        let lock = nodes::lock(fields.next()?)?;
        let notice = percent_decode_str(fields.next()?).decode_utf8().ok()?;
        let requests = fields.next()?.split(',').map(Guid::parse).collect::<Option<_>>()?;
        Some(Self { lock, notice: BreakNotice::from_text(&notice), requests })
    }

    /// Returns a line of at most `limit` bytes, with as many of the requests as fit; `None` if none fits.
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

/// Makes core renew the broken holds of this session as soon as their breaks are announced. Ends with the session.
///
/// It does not keep the session open.
pub(crate) async fn watch(session: Weak<Session>, alerts: Arc<HoldAlerts>) {
    while let Some(current) = session.upgrade() {
        match read_and_watch(&current).await {
            Ok((breaks, watcher)) => {
                let own = breaks
                    .0
                    .iter()
                    .filter(|one| one.requests.iter().any(|guid| current.is_registered(*guid)));
                own.for_each(|one| alerts.check(&one.lock));
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
                        "breaks can't be watched: holders are notified by their next renewal",
                    );
                    return;
                }
            },
        }
    }
}

/// Reads the breaks, and returns them with a watcher for the next change.
async fn read_and_watch(session: &Session) -> Result<(Breaks, OneshotWatcher), Failure> {
    // This watches a missing node, too. The read follows the watch, so it returns the same state or a newer one.
    let (stat, watcher) = session.client.check_and_watch_stat(&session.breaks).await?;
    let breaks = if stat.is_some() { Breaks::read(session).await? } else { Breaks::default() };
    Ok((breaks, watcher))
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylock_core::{Label, OwnerId};

    fn announcement(requests: usize) -> Announcement {
        let by = OwnerId::new("me @ host,1").unwrap();
        Announcement {
            lock: LockName::new("a b/ü\nc").unwrap(),
            notice: BreakNotice::new(by, Some(Label::new("it hangs, 100 %").unwrap())),
            requests: (0..requests).map(|_| Guid::random()).collect(),
        }
    }

    #[test]
    fn announcements_survive_a_round_trip() {
        let mut breaks = Breaks::default();
        breaks.add(announcement(1));
        breaks.add(Announcement { notice: BreakNotice::default(), ..announcement(3) });
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
        let (first, mut second) = (announcement(1), announcement(1));
        second.requests.clone_from(&first.requests);
        second.notice = BreakNotice::default();
        let mut breaks = Breaks::default();
        breaks.add(first.clone());
        breaks.add(second);
        assert_eq!(breaks.notice(first.requests[0]), Some(first.notice));
    }

    #[test]
    fn the_newest_breaks_are_kept_within_the_limit() {
        let mut breaks = Breaks::default();
        for _ in 0..2000 {
            breaks.add(announcement(1));
        }
        let newest = announcement(1);
        breaks.add(newest.clone());
        let bytes = breaks.to_bytes();
        assert!(bytes.len() <= LIMIT && bytes.len() > LIMIT / 2, "{}", bytes.len());
        assert_eq!(Breaks::parse(&bytes).0.last(), Some(&newest));
        // One break of more holders than fit.
        breaks.add(announcement(10_000));
        let bytes = breaks.to_bytes();
        assert!(bytes.len() <= LIMIT && bytes.len() > LIMIT / 2, "{}", bytes.len());
        assert!(Breaks::parse(&bytes).0.last().is_some_and(|last| last.requests.len() > 1000));
    }

    #[test]
    fn invalid_lines_are_skipped() {
        let one = announcement(1);
        let line = one.line(LIMIT).unwrap();
        let text = format!("x\n\n{} y\n% % %\n{line}a b c d", "é".repeat(20));
        assert_eq!(Breaks::parse(text.as_bytes()), Breaks(vec![one]));
        assert_eq!(Breaks::parse(b"\xff\xfe"), Breaks::default());
    }

    #[test]
    fn each_user_has_a_separate_node_unless_access_is_open() {
        let of = |url: &str| node(&Config::new(url).unwrap());
        assert_eq!(of("zk://h/r"), "/r/.breaks");
        assert_eq!(of("zk://a%2Fb:p@h/r"), "/r/.breaks-a%2Fb");
        assert_eq!(of("zk://a:p@h/r?polylock.access=open"), "/r/.breaks");
        assert_eq!(nodes::lock(".breaks-a%2Fb"), None);
    }
}
