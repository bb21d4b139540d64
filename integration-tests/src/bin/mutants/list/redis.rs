//! Bugs of the Redis stores: one server, Sentinels, clusters, and the connections of all of them.

use super::Mutant;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "release without owner check, in Redis",
        file: "crates/polylock-redis/src/queue/scripts/release_at_once.lua",
        from: "local removed = redis.call('HDEL', KEYS[1], ARGV[1])",
        to: "local removed = redis.call('DEL', KEYS[1])",
        test: ("conformance", "redis::idempotence::a_release_by_another_request_changes_nothing"),
    },
    Mutant {
        name: "claims executed after their release are not recorded, in Redis",
        file: "crates/polylock-redis/src/queue/backend.rs",
        from: "pending.is_settled = !may_execute_late;",
        to: "pending.is_settled = may_execute_late || !may_execute_late;",
        test: ("scenarios", "redis::late::a_claim_executed_after_its_release_grants_nothing"),
    },
    Mutant {
        name: "a late copy of a refused claim is not reported, in Redis",
        file: "crates/polylock-redis/src/queue/backend.rs",
        from: "may_be_granted_late(is_late)",
        to: "may_be_granted_late(is_late && false)",
        test: ("processes", "late_claims::redis::a_late_copy_of_a_try_that_was_refused_grants_nothing"),
    },
    Mutant {
        name: "claims that do not expire, in Redis",
        file: "crates/polylock-redis/src/queue/backend.rs",
        from: "const VALIDITY: Duration = Duration::from_secs(1);",
        to: "const VALIDITY: Duration = Duration::from_secs(3600);",
        test: ("scenarios", "redis::late::a_claim_delivered_after_seconds_has_expired"),
    },
    Mutant {
        name: "the deletion of a namespace deletes those with similar names, in Redis",
        file: "crates/polylock-redis/src/keys.rs",
        from: "prefixes.iter().any(|own| own == prefix)",
        to: "prefixes.iter().any(|own| prefix.starts_with(own.as_str()))",
        test: ("scenarios", "namespaces::of::redis"),
    },
    Mutant {
        name: "tokens beyond what a server counts exactly, in Redis",
        file: "crates/polylock-redis/src/queue/scripts/claim_at_once.lua",
        from: " and number < 9007199254740991",
        to: "",
        test: ("scenarios", "redis::tokens::without_a_greater_number_claims_fail_with_a_remedy"),
    },
    Mutant {
        name: "a broken hold that is extended, in Redis",
        file: "crates/polylock-redis/src/queue/scripts/keep_alive.lua",
        from: "if entry[8] then",
        to: "if false then",
        test: ("conformance", "redis::breaking::ends_with_the_lease"),
    },
    Mutant {
        name: "all prefixes share their channels, in Redis",
        file: "crates/polylock-redis/src/endpoint.rs",
        from: "    format!(\"polylock:{prefix}:{client}\")",
        to: "    drop(prefix.to_owned());
    format!(\"polylock:{client}\")",
        test: ("scenarios", "redis::access::the_documented_rights_are_sufficient"),
    },
    Mutant {
        name: "certificates are not verified, in Redis",
        file: "crates/polylock-redis/src/driver_keys.rs",
        from: "&[\"required\", \"CERT_REQUIRED\"]",
        to: "&[\"required\", \"CERT_REQUIRED\", \"none\"]",
        test: ("scenarios", "redis::clients::keys_of_other_drivers_are_applied"),
    },
    Mutant {
        name: "a hold that was deleted is renewed, in Redis",
        file: "crates/polylock-redis/src/queue/scripts/keep_alive.lua",
        from: "return notice_for(id) or 0",
        to: "return notice_for(id) or 1",
        test: ("conformance", "redis::recovery::after_the_store_was_emptied"),
    },
    Mutant {
        name: "a queue entry that has expired is revived, in Redis",
        file: "crates/polylock-redis/src/queue/scripts/keep_alive.lua",
        from: "if entry and entry[4] > now then",
        to: "if entry then",
        test: ("scenarios", "redis::keeping::an_entry_that_has_expired_is_not_revived"),
    },
    Mutant {
        name: "the key of a queue expires though its entries are kept alive, in Redis",
        file: "crates/polylock-redis/src/queue/scripts/keep_alive.lua",
        from: "        prolong(QUEUE, place_ttl)
",
        to: "",
        test: ("scenarios", "redis::keeping::entries_outlive_the_first_expiry_of_their_keys_without_a_claim"),
    },
    Mutant {
        name: "each waiter of a disconnected client is granted and revoked, in Redis",
        file: "crates/polylock-redis/src/queue/scripts/common.lua",
        from: "absent[waiter[5]] = true",
        to: "",
        test: ("scenarios", "redis::dead::waiters_of_a_disconnected_client_are_skipped_with_one_message"),
    },
    Mutant {
        name: "a full server refuses to keep a queue entry alive, in Redis",
        file: "crates/polylock-redis/src/queue/scripts/keep_alive.lua",
        from: "        prolong(QUEUE, place_ttl)
        prolong(WAITERS, place_ttl)
        redis.call('HSET', WAITERS, id, cmsgpack.pack(entry))
",
        to: "        redis.call('HSET', WAITERS, id, cmsgpack.pack(entry))
        prolong(QUEUE, place_ttl)
        prolong(WAITERS, place_ttl)
",
        test: ("scenarios", "redis::keeping::a_full_server_keeps_holds_and_queue_entries_alive"),
    },
    Mutant {
        name: "Redis Cluster: MOVED is not followed",
        file: "crates/polylock-redis/src/cluster/nodes.rs",
        from: "Step::Moved(address) => self.apply_redirection(bucket, &address, &link),",
        to: "Step::Moved(_) => false,",
        test: ("scenarios", "redis_cluster::moving::a_hold_survives_the_move_of_its_slot_and_waiters_are_granted_then"),
    },
    Mutant {
        name: "Redis Cluster: ASK without ASKING",
        file: "crates/polylock-redis/src/cluster/nodes.rs",
        from: "let routing = Routing { asking: target.is_some(),",
        to: "let routing = Routing { asking: false,",
        test: ("scenarios", "redis_cluster::moving::a_hold_survives_the_move_of_its_slot_and_waiters_are_granted_then"),
    },
    Mutant {
        name: "Redis Cluster: a hold in a moving slot is not renewed",
        file: "crates/polylock-redis/src/cluster/keep_alive.rs",
        from: "Err((_, cause)) if is_being_moved(&cause) => {",
        to: "Err((_, cause)) if is_being_moved(&cause) && timeout.is_zero() => {",
        test: ("scenarios", "redis_cluster::moving::a_hold_survives_the_move_of_its_slot_and_waiters_are_granted_then"),
    },
    Mutant {
        name: "Redis Cluster: a batch is sent to one node alone",
        file: "crates/polylock-redis/src/cluster/keep_alive.rs",
        from: "self.by_primary(requests).into_iter().enumerate() {",
        to: "self.by_primary(requests).into_iter().enumerate().take(1) {",
        test: ("scenarios", "redis_cluster::keeping::a_batch_extends_holds_at_all_primaries_and_returns_an_outcome_for_each"),
    },
    Mutant {
        name: "Redis Cluster: an unresponsive node delays the renewals at the others",
        file: "crates/polylock-redis/src/cluster/keep_alive.rs",
        from: "if under_way.iter().all(",
        to: "if shortest.is_zero() && under_way.iter().all(",
        test: ("scenarios", "redis_cluster::keeping::a_node_that_does_not_reply_delays_no_outcome_of_the_others"),
    },
    Mutant {
        name: "Redis Cluster: the slot table is not refreshed",
        file: "crates/polylock-redis/src/cluster/nodes.rs",
        from: "Step::Refresh if !refreshed => {",
        to: "Step::Refresh if !refreshed && timeout.is_zero() => {",
        test: ("scenarios", "redis_cluster::failover::a_frozen_primary_delays_no_other_and_is_replaced"),
    },
    Mutant {
        name: "Redis Cluster: messages that only clients of the same node count as received",
        file: "crates/polylock-redis/src/queue/scripts/common.lua",
        from: "is_in_slot and 'SPUBLISH' or 'PUBLISH'",
        to: "is_in_slot and 'PUBLISH' or 'PUBLISH'",
        test: ("scenarios", "redis_cluster::routing::a_release_notifies_the_next_waiter_in_another_process"),
    },
    Mutant {
        name: "Redis Cluster: locks are listed of one node alone",
        file: "crates/polylock-redis/src/cluster/nodes.rs",
        from: "let found = links.iter().map(|link|",
        to: "let found = links.iter().take(1).map(|link|",
        test: ("scenarios", "redis_cluster::routing::locks_are_spread_over_the_primaries_each_in_the_slot_of_its_bucket"),
    },
    Mutant {
        name: "Redis Cluster: the end of a subscription is a reply to a claim",
        file: "crates/polylock-redis/src/link.rs",
        from: "                Some(_) if live.slots.is_garbled() => (false, Cause::SlotLeft),
",
        to: "",
        test: (
            "scenarios",
            "redis_cluster::garbled::a_held_lock_is_not_granted_by_the_reply_to_another_claim",
        ),
    },
    Mutant {
        name: "Redis Cluster: the end of a subscription is a reply to a release",
        file: "crates/polylock-redis/src/link.rs",
        from: "            slots.mark_garbled();
",
        to: "",
        test: ("scenarios", "redis_cluster::garbled::a_release_is_not_reported_lost_by_the_reply_to_another_release"),
    },
    Mutant {
        name: "Redis Cluster: the nodes behind the first are not encrypted",
        file: "crates/polylock-redis/src/config.rs",
        from: "            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
",
        to: "            drop((insecure, tls_params));
            ConnectionAddr::Tcp(host, port)
",
        test: (
            "scenarios",
            "redis_cluster::encrypted::locks_of_all_nodes_require_the_right_authority",
        ),
    },
    Mutant {
        name: "Redis Sentinel: the certificate of the primary is not checked with the authority of the URL",
        file: "crates/polylock-redis/src/sentinel/sentinels.rs",
        from: "            let client = self.settings.client(&server, ProtocolVersion::RESP3);
",
        to: "            let mut settings = self.settings.clone();
            settings.certificates = polylock_core::url::Certificates::default();
            let client = settings.client(&server, ProtocolVersion::RESP3);
",
        test: (
            "scenarios",
            "redis_sentinel::an_encrypted_primary_requires_the_right_authority",
        ),
    },
    Mutant {
        name: "Redis Sentinel: the first primary is used for ever",
        file: "crates/polylock-redis/src/link.rs",
        from: "                for client in sentinels.primary().await? {",
        to: "                static FIRST: tokio::sync::OnceCell<Vec<Client>> = tokio::sync::OnceCell::const_new();
                for client in FIRST.get_or_try_init(|| sentinels.primary()).await?.clone() {",
        test: ("scenarios", "redis_sentinel::a_failover_is_followed_by_holders_and_waiters_and_tokens_grow"),
    },
    Mutant {
        name: "Redis Sentinel: a former primary is used",
        file: "crates/polylock-redis/src/checkup.rs",
        from: "is_some_and(|role| role != \"master\") {",
        to: "is_some_and(|role| role != \"master\" && expected != Expected::NamedPrimary) {",
        test: ("scenarios", "redis_sentinel::a_former_primary_is_not_used"),
    },
    Mutant {
        name: "Redis: a timeout that measures this client's own queue",
        file: "crates/polylock-redis/src/flow.rs",
        from: "let next = (replied + timeout).max(",
        to: "let next = (replied.min(self.sent_at) + timeout).max(",
        test: (
            "units of library polylock_redis",
            "flow::tests::a_server_that_replies_to_other_calls_is_responsive",
        ),
    },
    Mutant {
        name: "Redis: a claim of a caller that was dropped without a reply is not recorded",
        file: "crates/polylock-redis/src/queue/backend.rs",
        from: "        if !self.is_settled && expires_us != 0 {",
        to: "        if !self.is_settled && expires_us == 0 {",
        test: ("scenarios", "redis::late::a_late_claim_of_a_dropped_acquisition_grants_nothing"),
    },
    Mutant {
        name: "Redis: the connection of a caller to another server is used",
        file: "crates/polylock-redis/src/queue/backend.rs",
        from: "link.run().as_ref() == Some(&run)",
        to: "link.run().is_some()",
        test: ("scenarios", "redis::switched::a_caller_connected_to_the_former_server_claims_nothing_there"),
    },
    Mutant {
        name: "Redis: the connection of a caller to any server is used",
        file: "crates/polylock-redis/src/link.rs",
        from: "state.live.as_ref().filter(works)?.peer.health.run.clone()",
        to: "state.live.as_ref().filter(works)?.peer.health.run.as_ref().map(|_| std::sync::Arc::from(\"\"))",
        test: (
            "scenarios",
            "redis::switched::a_caller_connected_to_the_new_server_too_early_claims_nothing",
        ),
    },
    Mutant {
        name: "Redis: the connection of a caller is replaced by one to another server",
        file: "crates/polylock-redis/src/link.rs",
        from: "let link = Self::build(without_messages(endpoint), false);",
        to: "let link = Self::build(without_messages(endpoint), true);",
        test: (
            "scenarios",
            "redis::switched::an_operation_sent_to_the_former_server_is_not_repeated_at_the_new",
        ),
    },
    Mutant {
        name: "Redis: a key with another bucket is taken for that of the lock",
        file: "crates/polylock-redis/src/keys.rs",
        from: "(bucket == expected).then_some(name)",
        to: "bucket.len().eq(&expected.len()).then_some(name)",
        test: ("units of library polylock_redis", "fuzz::tests::keys"),
    },
    Mutant {
        name: "Redis: a fence compares tokens as Lua numbers",
        file: "crates/polylock-redis/src/fence.lua",
        from: "return #one < #other or (#one == #other and one < other)",
        to: "return tonumber(one) < tonumber(other)",
        test: ("scenarios", "redis::fence::a_fence_accepts_no_smaller_token"),
    },
    Mutant {
        name: "Redis: a fence compares tokens as texts",
        file: "crates/polylock-redis/src/fence.lua",
        from: "return #one < #other or (#one == #other and one < other)",
        to: "return one < other",
        test: ("scenarios", "redis::fence::a_fence_accepts_no_smaller_token"),
    },
    Mutant {
        name: "Redis: a fence records no token",
        file: "crates/polylock-redis/src/fence.lua",
        from: "redis.call('SET', KEYS[1], token)",
        to: "token = last",
        test: ("scenarios", "redis::fence::a_fence_accepts_no_smaller_token"),
    },
    Mutant {
        name: "Redis: a break is valid after it has failed",
        file: "crates/polylock-redis/src/queue/backend.rs",
        from: "call(peer.clock.expiry_us(left()).unwrap_or(0))",
        to: "call(peer.clock.expiry_us(left() + 9 * timeout).unwrap_or(0))",
        test: ("processes", "late_breaks::redis::a_mark_that_has_failed_marks_nothing"),
    },
];
