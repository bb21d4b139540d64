//! Bugs that are planted at run time, by which the checks are checked.

use std::time::Duration;

use super::{
    acts::{Act, Due, Role, Step},
    check::Kind,
    message::{Action, Outcome, Reply, Way},
    relay::Trap,
    script::{Copies, Script},
};
use crate::chaos::planted::RoutineBug;

/// The bugs in the routines of a database.
pub static ROUTINES: [RoutineBug; 12] = [
    RoutineBug {
        name: "renewal-sets",
        meaning: "a renewal sets the lease, and may shorten it",
        scheme: "postgres",
        routine: "_keep_alive_",
        change: ("greatest(expires_at, v_now + ttl)", "v_now + ttl"),
    },
    RoutineBug {
        name: "renewal-sets",
        meaning: "a renewal sets the lease, and may shorten it",
        scheme: "mysql",
        routine: "_keep_alive_",
        change: ("greatest(expires_at, v_now + v_ttl)", "v_now + v_ttl"),
    },
    RoutineBug {
        name: "claims-again",
        meaning: "a claim that arrives after the release of its request is granted",
        scheme: "postgres",
        routine: "_claim_",
        change: ("AND request = a_request AND expires_at > v_now) THEN", "AND FALSE) THEN"),
    },
    RoutineBug {
        name: "claims-again",
        meaning: "a claim that arrives after the release of its request is granted",
        scheme: "mysql",
        routine: "_claim_",
        change: ("AND request = a_request AND expires_at > v_now) THEN", "AND FALSE) THEN"),
    },
    RoutineBug {
        name: "late-claim",
        meaning: "a claim is carried out although its client has abandoned it",
        scheme: "postgres",
        routine: "_claim_",
        change: ("IF v_now > a_expiry THEN", "IF FALSE THEN"),
    },
    RoutineBug {
        name: "late-claim",
        meaning: "a claim is carried out although its client has abandoned it",
        scheme: "mysql",
        routine: "_claim_",
        change: ("IF v_now > a_expiry THEN", "IF FALSE THEN"),
    },
    RoutineBug {
        name: "breaks-anyone",
        meaning: "a break is for whoever holds the lock",
        scheme: "postgres",
        routine: "_break_",
        change: ("AND token = ANY (v_tokens) AND", "AND"),
    },
    RoutineBug {
        name: "breaks-anyone",
        meaning: "a break is for whoever holds the lock",
        scheme: "mysql",
        routine: "_break_",
        change: ("AND find_in_set(token, a_tokens) > 0 AND", "AND"),
    },
    RoutineBug {
        name: "parked-extended",
        meaning: "a parked hold is extended",
        scheme: "postgres",
        routine: "_park_",
        change: ("expires_at = r_clock + a_left, notice = ''", "expires_at = r_clock + a_left"),
    },
    RoutineBug {
        name: "parked-extended",
        meaning: "a parked hold is extended",
        scheme: "mysql",
        routine: "_park_",
        change: ("expires_at = v_now + a_left, notice = ''", "expires_at = v_now + a_left"),
    },
    RoutineBug {
        name: "late-park",
        meaning: "a park is carried out although its client has abandoned it, and shortens the lease that another process has confirmed",
        scheme: "postgres",
        routine: "_park_",
        change: ("IF r_clock > a_expiry THEN", "IF FALSE THEN"),
    },
    RoutineBug {
        name: "late-park",
        meaning: "a park is carried out although its client has abandoned it, and shortens the lease that another process has confirmed",
        scheme: "mysql",
        routine: "_park_",
        change: ("IF v_now > a_expiry THEN", "IF FALSE THEN"),
    },
];

/// A bug, or a history that the check sees wrongly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// A hold is broken by force, which nobody has asked for: its holder and the next one overlap.
    HiddenBreak,
    /// A hold is parked, which nobody has asked for: its lease is shortened.
    HiddenPark,
    /// A claim of a request that has ended is carried out: a ghost.
    HiddenClaim,
    /// A break names another token than the one that it breaks: an innocent holder.
    WrongTarget,
    /// A grant has a small token.
    SmallToken,
    /// A grant comes a minute late.
    LateGrant,
    /// A routine of the database has a bug.
    Routine(&'static RoutineBug),
}

impl Plant {
    /// All of them, without those in routines.
    pub const ALL: [Self; 6] = [
        Self::HiddenBreak,
        Self::HiddenPark,
        Self::HiddenClaim,
        Self::WrongTarget,
        Self::SmallToken,
        Self::LateGrant,
    ];

    /// Returns its name as an argument.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HiddenBreak => "hidden-break",
            Self::HiddenPark => "hidden-park",
            Self::HiddenClaim => "hidden-claim",
            Self::WrongTarget => "wrong-target",
            Self::SmallToken => "small-token",
            Self::LateGrant => "late-grant",
            Self::Routine(bug) => bug.name,
        }
    }

    /// Returns the bug with this name, in a store with this scheme.
    #[must_use]
    pub fn named(name: &str, scheme: &str) -> Option<Self> {
        let routines = ROUTINES.iter().filter(|bug| bug.scheme == scheme).map(Self::Routine);
        Self::ALL.into_iter().chain(routines).find(|plant| plant.name() == name)
    }

    /// Returns the kind of the violation by which it is found; `None` if there are several.
    #[must_use]
    pub const fn kind(self) -> Option<Kind> {
        Some(match self {
            Self::Routine(_) => return None,
            Self::HiddenBreak => Kind::Overlap,
            Self::HiddenPark => Kind::Shortened,
            Self::HiddenClaim => Kind::Ghost,
            Self::WrongTarget => Kind::Innocent,
            Self::SmallToken => Kind::Token,
            Self::LateGrant => Kind::Stuck,
        })
    }

    /// Returns a schedule that shows a bug of the check, or any other bug of those without a routine, whatever the servers take for it.
    ///
    /// 1. The holder acquires the lock for a long time, and makes a handle of the hold.
    /// 2. The breaker marks the hold, and reads the lock.
    /// 3. The holder releases the lock, and the next one acquires it. If the lock is freed secretly, the holder goes on until the next one has it.
    #[must_use]
    pub fn script(self) -> Script {
        const LONG: Duration = Duration::from_secs(3600);
        let acquire = Act::Acquire { ttl: Some(LONG), shared: false, wait: Some(Duration::from_secs(20)) };
        let step = |(role, act)| Step { role, act, after: Duration::ZERO };
        let mut steps = vec![
            (Role::Holder, acquire),
            (Role::Holder, Act::Handle),
            (Role::Breaker, Act::Look),
            (Role::Breaker, Act::Break { force: false }),
            (Role::Breaker, Act::Look),
            (Role::Next, Act::Begin),
        ];
        if self != Self::HiddenBreak {
            steps.push((Role::Holder, Act::End(Way::Release)));
        }
        let next = [(Role::Next, acquire), (Role::Next, Act::End(Way::Release))];
        Script {
            number: 0,
            steps: steps.into_iter().map(step).collect(),
            next: next.map(step).into(),
            trapped: 0,
            trap: Trap { skip: 0, servers: 0, each: false, all: false, closes: false },
            due: Due::End,
            withheld_for: Duration::ZERO,
            copies: Copies::None,
        }
    }

    /// Returns the operation and its reply as the check sees them.
    pub(super) fn changed(self, action: Action, mut reply: Reply) -> (Action, Reply) {
        let action = match (self, action) {
            (Self::WrongTarget, Action::Break { name, token, force, reason }) => {
                Action::Break { name, token: token.saturating_sub(1), force, reason }
            }
            (Self::SmallToken, action) => {
                if let (Action::Acquire { guard, .. }, Outcome::Held { token, .. }) =
                    (&action, &mut reply.outcome)
                    && guard.starts_with(['n', 'z'])
                {
                    *token = 1;
                }
                action
            }
            (Self::LateGrant, action) => {
                if matches!((&action, &reply.outcome), (Action::Acquire { .. }, Outcome::Held { .. })) {
                    reply.returned += 60_000_000_000;
                }
                action
            }
            (_, action) => action,
        };
        (action, reply)
    }
}
