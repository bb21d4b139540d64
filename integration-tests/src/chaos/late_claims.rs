//! Claims that have an effect after their clients have abandoned them.

use std::time::Duration;

use super::{
    configuration::Configuration,
    looks::Entry,
    observed::{Found, Observed},
    plan::Kind,
};
use crate::simulation::{network::nanos, violation::Violation};

/// The time between the check of a claim's time limit and its commit, on a busy machine.
const TOLERANCE: Duration = Duration::from_millis(250);

/// Returns the entries that have appeared in the store after the last claim of their request had expired. Each request has an owner of its
/// own, so faults and other requests explain none of them.
pub(super) fn late_claims<'o>(
    observed: &'o Observed,
    configuration: &'o Configuration,
) -> impl Iterator<Item = Found> + 'o {
    let limit = configuration.claims_expire;
    observed.entries.iter().filter_map(move |entry| {
        let Entry { lock, owner, at, absent } = entry;
        let (limit, ended) = (limit?, observed.ended(owner)?);
        if *absent < ended.saturating_add(nanos(limit + TOLERANCE)) {
            return None;
        }
        // A server may stop between the check and the commit. A release before a kill may be undone.
        let is_excused = observed.applied.iter().any(|fault| {
            let excuses = match fault.action.kind() {
                Kind::ServerStop => true,
                Kind::ServerKill | Kind::OldSnapshot | Kind::FullDisk | Kind::SwitchOver => {
                    configuration.restores
                }
                _ => false,
            };
            excuses && fault.to > ended && fault.from < *at
        });
        (!is_excused).then(|| {
            let after = Duration::from_nanos(absent - ended);
            let what = format!("{owner} has an entry in {lock}, and had none {after:.1?} after its request");
            Found {
                violation: Violation::new(*at, "late claim", what),
                lock: Some(lock.clone()),
                span: (ended, *at),
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{configuration, plan::Action, site::Applied},
        *,
    };

    const S: u64 = 1_000_000_000;

    fn late(store: &str, observed: &Observed) -> usize {
        late_claims(observed, configuration::named(store).expect("it is in the list")).count()
    }

    #[test]
    fn an_entry_after_the_end_of_its_request_is_found() {
        let entry =
            |absent| Entry { lock: "n".to_owned(), owner: "p0.0.1-7:77".to_owned(), at: 9 * S, absent };
        let mut observed = Observed { entries: vec![entry(7 * S)], ..Observed::default() };
        assert_eq!(late("postgres", &observed), 0, "the request has not ended");
        observed.ended.insert("p0.0.1-7:77".to_owned(), 6 * S);
        assert_eq!(late("postgres", &observed), 0, "the claim may have been valid");
        observed.entries = vec![entry(7 * S + S / 4)];
        assert_eq!(late("postgres", &observed), 1);
        assert_eq!(late("azure", &observed), 0, "it makes no such promise");
        let fault = |action| vec![Applied { action, from: 5 * S, to: 6 * S + 1 }];
        observed.applied = fault(Action::StopServers { first: 0, count: 1 });
        assert_eq!(late("mariadb", &observed), 0, "it may have been checked before");
        observed.applied = fault(Action::KillServer(0));
        assert_eq!(late("postgres", &observed), 0, "the hold may have been restored");
        assert_eq!(late("mariadb", &observed), 1, "this server restores none");
        observed.applied.clear();
        observed.ended.clear();
        observed.killed = vec![(77, 6 * S)];
        assert_eq!(late("postgres", &observed), 1, "the process was killed");
    }
}
