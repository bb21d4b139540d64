//! Bugs of the Azure store.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "the deletion of a namespace leaves leased blobs, in Azure",
        file: "crates/polylock-azure/src/blobs.rs",
        from: "let broken = self.send(timeout, self.container.blob_client(blob).break_lease(Some(now))).await;",
        to: "let broken = now;",
        test: ("scenarios", "namespaces::of::azure"),
    },
    Mutant {
        name: "Azure: the lease id in the reply to a renewal is not compared",
        file: "crates/polylock-azure/src/blobs.rs",
        from: "Ok(lease_id.as_deref() == Some(OWN_LEASE))",
        to: "Ok(lease_id.is_some())",
        test: ("scenarios", "azure::lost_replies::a_renewal_reply_with_another_lease_id_is_a_loss"),
    },
    Mutant {
        name: "Azure: an acquisition without a reply is not released again",
        file: "crates/polylock-azure/src/backend.rs",
        from: "attempt.and_then(|attempt| attempt.unanswered)",
        to: "attempt.and_then(|attempt| attempt.unanswered).filter(|_| false)",
        test: ("scenarios", "azure::late::an_acquisition_that_arrives_after_its_release_blocks_nobody"),
    },
    Mutant {
        name: "Azure: a late copy of an acquisition that has succeeded is not recorded",
        file: "crates/polylock-azure/src/grants.rs",
        from: "Ok(acquired) => acquired.was_resent,",
        to: "Ok(acquired) => acquired.was_resent && false,",
        test: (
            "scenarios",
            "azure::late::a_copy_of_an_acquisition_that_arrives_after_its_release_blocks_nobody",
        ),
    },
    Mutant {
        name: "Azure: a late copy of a refused acquisition is not recorded",
        file: "crates/polylock-azure/src/grants.rs",
        from: "cause.refusal().is_none() || cause.was_resent()",
        to: "cause.refusal().is_none()",
        test: ("processes", "late_claims::azure::a_late_copy_of_a_try_that_was_refused_grants_nothing"),
    },
    Mutant {
        name: "Azure: a late copy of a refused acquisition is not reported",
        file: "crates/polylock-azure/src/backend.rs",
        from: ".may_be_granted_late(may_hold)",
        to: ".may_be_granted_late(false)",
        test: ("processes", "late_claims::azure::a_late_copy_of_a_try_that_was_refused_grants_nothing"),
    },
    Mutant {
        name: "Azure: a cached token is used though another client has written since",
        file: "crates/polylock-azure/src/tokens.rs",
        from: "(Some(known) == etag).then(",
        to: "(Some(known) == etag || etag.is_some()).then(",
        test: ("scenarios", "azure::leases::tokens_grow_across_processes"),
    },
    Mutant {
        name: "Azure: a lease that is granted late is released too late",
        file: "crates/polylock-azure/src/backend.rs",
        from: "(Duration::from_millis(100), Duration::from_millis(700));",
        to: "(Duration::from_secs(20), Duration::from_secs(20));",
        test: ("scenarios", "azure::late::a_late_acquisition_is_released_within_a_second_of_its_arrival"),
    },
    Mutant {
        name: "Azure: a refused release is reported as a success",
        file: "crates/polylock-azure/src/backend.rs",
        from: "match queued || cause.was_resent() {",
        to: "match queued || cause.refusal().is_some() {",
        test: ("conformance", "azure::release::of_a_superseded_hold_is_an_error"),
    },
    Mutant {
        name: "Azure: the second reply to a release that was sent twice counts",
        file: "crates/polylock-azure/src/backend.rs",
        from: "match queued || cause.was_resent() {",
        to: "match queued {",
        test: ("scenarios", "azure::lost_replies::of_a_release_leave_no_lease"),
    },
    Mutant {
        name: "Azure: a former holder can still release a lease that was broken by force",
        file: "crates/polylock-azure/src/breaks.rs",
        from: "                    self.revoke_broken_lease(name).await;
",
        to: "",
        test: ("conformance", "azure::breaking::by_force_is_reported_by_the_release"),
    },
    Mutant {
        name: "Azure: a cooperative break ends the lease at once",
        file: "crates/polylock-azure/src/blobs.rs",
        from: "break_period: now.then_some(0),",
        to: "break_period: Some(i32::from(now) * 0),",
        test: ("conformance", "azure::breaking::waits_for_the_holder"),
    },
    Mutant {
        name: "Azure: a second break overwrites the notice of the first",
        file: "crates/polylock-azure/src/breaks.rs",
        from: "Some((earlier, _)) if earlier.grant == broken.grant =>",
        to: "Some((earlier, _)) if earlier.notice == broken.notice =>",
        test: ("conformance", "azure::breaking::keeps_the_first_notice"),
    },
    Mutant {
        name: "Azure: a notice counts for every grant",
        file: "crates/polylock-azure/src/breaks.rs",
        from: "found.filter(|(broken, _)| broken.grant == *grant)",
        to: "found.filter(|(broken, _)| broken.grant == *grant || !self.endpoint.is_empty())",
        test: ("scenarios", "azure::breaking::a_notice_is_for_one_grant_only"),
    },
    Mutant {
        name: "Azure: unread notices are not deleted",
        file: "crates/polylock-azure/src/breaks.rs",
        from: "age(now, properties.last_modified) > NOTICE_LIFETIME",
        to: "age(now, properties.last_modified) > NOTICE_LIFETIME * 10",
        test: ("scenarios", "azure::breaking::unread_notices_are_deleted_by_a_later_break"),
    },
    Mutant {
        name: "Azure: the first token of a blob is a whole second",
        file: "crates/polylock-azure/src/tokens.rs",
        from: "Some(micros.div_euclid(SECOND)) == modified",
        to: "Some(micros.div_euclid(SECOND)) == modified && *micros < 0",
        test: (
            "scenarios",
            "azure::leases::tokens_grow_if_the_blob_is_deleted_in_the_second_of_its_first_grant",
        ),
    },
    Mutant {
        name: "obsolete records of requests are kept",
        file: "crates/polylock-core/src/requests.rs",
        from: "self.records.retain(|_, record| record.until > now);",
        to: "self.records.retain(|_, record| record.until > now || record.until <= now);",
        test: ("conformance", "memory::leaks::no_records_of_ended_requests"),
    },
    Mutant {
        name: "every insertion looks for obsolete records",
        file: "crates/polylock-core/src/requests.rs",
        from: "self.sweep_at = MIN_SWEEP.max(2 * self.records.len());",
        to: "self.sweep_at = MIN_SWEEP.max(self.records.len());",
        test: ("units of library polylock_core", "requests::tests::memory_and_time_are_bounded"),
    },
];
