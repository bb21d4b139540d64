-- Extends live holds that are not marked as broken, and live queue entries: to a maximum, which never shortens a lease. Returns a text
-- for each request, in their order, separated by commas: H, rest of the lease, token and modes, separated by spaces, for a hold; Q
-- queued, B broken, G gone or parked, C contested (another transaction is changing the entry).
--
-- Inputs:    a_batch has for each request one byte with the length of its name, the name, its id, a byte that is 1 if it is
--            exclusive, its TTL and that of its queue entry in us, in eight bytes each.
-- Atomicity: one transaction, which never waits for a row, because a deadlock would undo the work of a whole batch. A claim that
--            deletes expired entries, or a break, conflicts with it on the entry's row, so one of the two sees the other's
--            change.
-- Cost:      three statements for the whole batch. Each entry is found by its key, whatever statistics the planner has: a queue
--            may have grown to thousands of entries since the tables were analysed.
-- Clock:     read before the first entry is locked.
--
-- It is as durable as the grants: a crash of the server must not undo an extension that a holder relies on.
CREATE OR REPLACE FUNCTION {p}_keep_alive_3(a_batch bytea, a_durable boolean)
RETURNS TABLE (r_states text)
LANGUAGE plpgsql {pinned} SET enable_seqscan = off AS $body$
DECLARE
    v_at integer := 1;
    v_length integer;
    v_entry integer := 0;
    v_names bytea[];
    v_requests bytea[];
    v_slots bytea[];
    v_ttls bigint[];
    v_place_ttls bigint[];
    v_now bigint;
    v_held bigint[];
    v_terms text[];
    v_queued bigint[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    WHILE v_at <= length(a_batch) LOOP
        v_entry := v_entry + 1;
        v_length := get_byte(a_batch, v_at - 1);
        v_names[v_entry] := substring(a_batch FROM v_at + 1 FOR v_length);
        v_at := v_at + 1 + v_length;
        v_requests[v_entry] := substring(a_batch FROM v_at FOR 16);
        v_slots[v_entry] := CASE WHEN get_byte(a_batch, v_at + 15) = 1 THEN ''::bytea ELSE v_requests[v_entry] END;
        v_ttls[v_entry] := ('x' || encode(substring(a_batch FROM v_at + 17 FOR 8), 'hex'))::bit(64)::bigint;
        v_place_ttls[v_entry] := ('x' || encode(substring(a_batch FROM v_at + 25 FOR 8), 'hex'))::bit(64)::bigint;
        v_at := v_at + 33;
    END LOOP;
    v_now := {now};

    WITH locked AS MATERIALIZED (
        SELECT ord, ttl, id FROM unnest(v_names, v_requests, v_slots, v_ttls) WITH ORDINALITY
            AS entry (b_name, b_request, b_slot, ttl, ord)
        CROSS JOIN LATERAL (
            SELECT ctid AS id FROM {p}_holds
            WHERE name = b_name AND slot = b_slot AND request = b_request AND expires_at > v_now AND notice IS NULL
            LIMIT 1 FOR UPDATE SKIP LOCKED) AS hold
    ), extended AS (
        UPDATE {p}_holds SET expires_at = greatest(expires_at, v_now + ttl) FROM locked WHERE {p}_holds.ctid = id
        RETURNING ord, concat_ws(' ', 'H', expires_at - v_now, token, mode) AS terms)
    SELECT array_agg(ord), array_agg(terms) INTO v_held, v_terms FROM extended;
    WITH locked AS MATERIALIZED (
        SELECT ord, ttl, id FROM unnest(v_names, v_requests, v_place_ttls) WITH ORDINALITY
            AS entry (b_name, b_request, ttl, ord)
        CROSS JOIN LATERAL (
            SELECT ctid AS id FROM {p}_waiters
            WHERE name = b_name AND request = b_request AND expires_at > v_now
            LIMIT 1 FOR UPDATE SKIP LOCKED) AS waiter
    ), extended AS (
        UPDATE {p}_waiters SET expires_at = greatest(expires_at, v_now + ttl) FROM locked WHERE {p}_waiters.ctid = id RETURNING ord)
    SELECT array_agg(ord) INTO v_queued FROM extended;

    -- Each statement sees what was committed before it: an entry that exists now and was not extended was locked or changed by
    -- another transaction, or has just become a hold.
    SELECT string_agg(CASE
            WHEN held.ord IS NOT NULL THEN held.terms
            WHEN queued.ord IS NOT NULL THEN 'Q'
            WHEN EXISTS (SELECT 1 FROM {p}_holds WHERE name = b_name AND slot = b_slot AND request = b_request
                AND expires_at > v_now AND notice IS NULL)
                OR EXISTS (SELECT 1 FROM {p}_waiters WHERE name = b_name AND request = b_request AND expires_at > v_now)
                THEN 'C'
            WHEN EXISTS (SELECT 1 FROM {p}_holds WHERE name = b_name AND slot = b_slot AND request = b_request
                AND notice <> '')
                OR EXISTS (SELECT 1 FROM {p}_broken WHERE name = b_name AND request = b_request AND notice <> '')
                THEN 'B'
            ELSE 'G' END, ',' ORDER BY entry.ord)
    INTO r_states
    FROM unnest(v_names, v_requests, v_slots) WITH ORDINALITY AS entry (b_name, b_request, b_slot, ord)
    LEFT JOIN unnest(v_held, v_terms) AS held (ord, terms) ON held.ord = entry.ord
    LEFT JOIN unnest(v_queued) AS queued (ord) ON queued.ord = entry.ord;
    IF v_held IS NOT NULL THEN
        {durable}
    END IF;
    RETURN NEXT;
END $body$;
