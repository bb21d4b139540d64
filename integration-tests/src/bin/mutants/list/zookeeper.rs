//! Bugs of the ZooKeeper store.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "ZooKeeper: a session is trusted until the driver reports its end",
        file: "crates/polylock-zookeeper/src/proof.rs",
        from: "timeout * 11 / 12",
        to: "timeout * 19 / 10",
        test: ("scenarios", "zookeeper::partitions::a_holder_with_lost_requests_is_notified_in_time"),
    },
    Mutant {
        name: "ZooKeeper: a read renews a hold",
        file: "crates/polylock-zookeeper/src/session.rs",
        from: "let known = || self.lifetime.until().since(began).min(ttl);",
        to: "let known = || ttl;",
        test: (
            "units of library polylock_integration_tests",
            "simulation::tests::the_seeds_that_have_found_bugs_are_sound",
        ),
    },
    Mutant {
        name: "ZooKeeper: a claim that has expired while it was sent does not renew its queue entry",
        file: "crates/polylock-zookeeper/src/backend.rs",
        from: "*slot = self.claims.enter(request);",
        to: "slot.set_stage(Stage::Idle);",
        test: (
            "units of library polylock_integration_tests",
            "simulation::tests::the_seeds_that_have_found_bugs_are_sound",
        ),
    },
    Mutant {
        name: "ZooKeeper: a lease counts from packets that the leader may not know of",
        file: "crates/polylock-zookeeper/src/proof.rs",
        from: "one.at + self.half_tick <= sync.sent",
        to: "one.at <= sync.sent",
        test: (
            "units of library polylock_zookeeper",
            "proof::tests::a_transaction_proves_the_last_packet_half_a_tick_before_the_last_sync",
        ),
    },
    Mutant {
        name: "ZooKeeper: a node with an unanswered create is not searched for",
        file: "crates/polylock-zookeeper/src/creation.rs",
        from: "Outcome::Unknown => match find_created(&session, path, guid).await? {",
        to: "Outcome::Unknown => match find_created(&session, path, guid).await?.filter(|_| false) {",
        test: ("scenarios", "zookeeper::lost_replies::of_any_operation_leave_no_node"),
    },
    Mutant {
        name: "ZooKeeper: the end of the sequences is not detected",
        file: "crates/polylock-zookeeper/src/creation.rs",
        from: "self.child.sequence < 0 || self.child.sequence > LAST_SEQUENCE",
        to: "self.child.sequence < 0 && self.child.sequence > LAST_SEQUENCE",
        test: (
            "scenarios",
            "zookeeper::sequence_overflow::requests_beyond_the_last_sequence_wait_for_an_empty_lock_node",
        ),
    },
    Mutant {
        name: "ZooKeeper: a fence checks a node that always exists",
        file: "crates/polylock-zookeeper/src/fence.rs",
        from: "self.client.new_check_writer(&self.path, None)",
        to: "self.client.new_check_writer(\"/\", None)",
        test: ("scenarios", "zookeeper::fence::a_released_lock_writes_nothing"),
    },
    Mutant {
        name: "ZooKeeper: a lost create is searched for after a sync, which needs no majority",
        file: "crates/polylock-zookeeper/src/creation.rs",
        from: "session.children_after_commit(directory)",
        to: "session.children_now(directory)",
        test: ("scenarios", "zookeeper::orphans::a_leader_without_followers_does_not_settle_a_lost_create"),
    },
    Mutant {
        name: "ZooKeeper: an orphaned node of the session is not deleted",
        file: "crates/polylock-zookeeper/src/session.rs",
        from: "one.guid.is_of_session(self.guid) && !self.is_registered(one.guid)",
        to: "one.guid.is_of_session(self.guid) && !self.is_registered(one.guid) && directory.is_empty()",
        test: (
            "scenarios",
            "zookeeper::orphans::an_orphaned_node_is_deleted_by_the_next_claim_of_its_session",
        ),
    },
    Mutant {
        name: "ZooKeeper: a node of the session is deleted as an orphan though a request uses it",
        file: "crates/polylock-zookeeper/src/session.rs",
        from: "one.guid.is_of_session(self.guid) && !self.is_registered(one.guid)",
        to: "one.guid.is_of_session(self.guid) && (!self.is_registered(one.guid) || requests.len() > 1)",
        test: ("scenarios", "zookeeper::orphans::only_orphaned_nodes_are_deleted"),
    },
    Mutant {
        name: "ZooKeeper: a release that finds no node is reported as a success",
        file: "crates/polylock-zookeeper/src/creation.rs",
        from: "Removal::Absent => Release::Lost(self.gone_reason().await),",
        to: "Removal::Absent => Release::Released,",
        test: ("conformance", "zookeeper::breaking::by_force_is_reported_by_the_release"),
    },
    Mutant {
        name: "ZooKeeper: a deletion whose reply was lost is not remembered",
        file: "crates/polylock-zookeeper/src/session.rs",
        from: "may_be_deleted = true;",
        to: "may_be_deleted = false;",
        test: ("scenarios", "zookeeper::lost_replies::of_any_operation_leave_no_node"),
    },
    Mutant {
        name: "ZooKeeper: a broken hold is extended",
        file: "crates/polylock-zookeeper/src/creation.rs",
        from: "Ok(NodeData::parse(&data).and_then(|data| data.broken).map(LostReason::Broken))",
        to: "Ok(NodeData::parse(&data).and_then(|data| data.broken.filter(|_| false)).map(LostReason::Broken))",
        test: ("conformance", "zookeeper::breaking::ends_with_the_lease"),
    },
    Mutant {
        name: "ZooKeeper: a hold without renewals lasts until its session ends",
        file: "crates/polylock-zookeeper/src/claims.rs",
        from: "            slot.expire();
",
        to: "            drop(slot);
",
        test: (
            "scenarios",
            "zookeeper::breaking::a_holder_that_does_not_stop_keeps_the_lock_until_its_lease_ends",
        ),
    },
    Mutant {
        name: "ZooKeeper: a second break overwrites the notice of the first",
        file: "crates/polylock-zookeeper/src/break_lock.rs",
        from: "writer.add_set_data(&holder.path, &marked, Some(holder.version))?;",
        to: "writer.add_set_data(&holder.path, &marked, None)?;",
        test: ("scenarios", "zookeeper::breaking::two_concurrent_breaks_return_the_same_notice"),
    },
    Mutant {
        name: "ZooKeeper: a break that is not announced",
        file: "crates/polylock-zookeeper/src/break_lock.rs",
        from: "        if announces {",
        to: "        if announces && order.force {",
        test: ("conformance", "zookeeper::breaking::notifies_the_holder_at_once"),
    },
    Mutant {
        name: "ZooKeeper: a node with foreign data is not shown",
        file: "crates/polylock-zookeeper/src/inspect.rs",
        from: "        None => NodeData {",
        to: "        None if stat.czxid > 0 => return None,
        None => NodeData {",
        test: (
            "scenarios",
            "zookeeper::breaking::a_node_with_foreign_data_is_listed_and_only_deleted_by_force",
        ),
    },
    Mutant {
        name: "ZooKeeper: a request is granted though no list has shown it",
        file: "crates/polylock-zookeeper/src/directory.rs",
        from: "return own.is_listed().then_some(Position::First)",
        to: "return own.is_listed().then_some(Position::First).or(Some(Position::First))",
        test: ("scenarios", "zookeeper::lock_nodes::that_were_created_again_are_listed_before_a_grant"),
    },
    Mutant {
        name: "ZooKeeper: a list that was sent before another is applied after it",
        file: "crates/polylock-zookeeper/src/directory.rs",
        from: "if number < state.applied {",
        to: "if number < state.applied.min(1) {",
        test: (
            "units of library polylock_zookeeper",
            "directory::tests::only_admissible_requests_are_first_and_each_becomes_first",
        ),
    },
    Mutant {
        name: "ZooKeeper: a request whose node is gone is granted after an earlier list",
        file: "crates/polylock-zookeeper/src/creation.rs",
        from: "return Ok(if self.exists().await? { position } else { Position::Gone });",
        to: "return Ok(if self.exists().await? || counts == counts { position } else { Position::Gone });",
        test: ("scenarios", "zookeeper::lock_nodes::with_a_deleted_request_do_not_grant_it"),
    },
    Mutant {
        name: "ZooKeeper: the break of a holder is treated as its release",
        file: "crates/polylock-zookeeper/src/claims.rs",
        from: "event_type == EventType::NodeDeleted",
        to: "event_type != EventType::NodeCreated",
        test: ("scenarios", "zookeeper::breaking::waiters_are_granted_only_after_the_holder_stops"),
    },
    Mutant {
        name: "ZooKeeper: a request whose node is being deleted is granted",
        file: "crates/polylock-zookeeper/src/claims.rs",
        from: "let is_kept = !matches!(*current, Stage::Deleting(..));",
        to: "let is_kept = true;",
        test: ("scenarios", "zookeeper::orphans::a_claim_is_not_granted_with_a_node_that_is_being_deleted"),
    },
    Mutant {
        name: "ZooKeeper: the empty nodes of locks are left to the servers",
        file: "crates/polylock-zookeeper/src/creation.rs",
        from: "if missing && parent.is_ok() {",
        to: "if missing && parent.is_err() {",
        test: ("scenarios", "zookeeper::lock_nodes::that_are_empty_are_deleted_without_the_servers_reaper"),
    },
    Mutant {
        name: "ZooKeeper: a percent sign in a name is not encoded",
        file: "crates/polylock-zookeeper/src/nodes.rs",
        from: "pub(crate) const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'-');",
        to: "pub(crate) const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'-').remove(b'%');",
        test: ("units of library polylock_zookeeper", "fuzz::tests::locks"),
    },
];
