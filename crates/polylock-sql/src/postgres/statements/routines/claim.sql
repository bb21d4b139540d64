-- Takes the lock if it is the request's turn; otherwise joins the queue, or extends its queue entry, if the request queues.
-- Returns (token, lease) if it holds the lock now, otherwise (NULL, rest of the lease of the last conflicting entry ahead, queue
-- position if it has one, number of conflicting entries ahead if a_counts). The fifth column is the clock.
--
-- Inputs:    a_place_ttl is 0 for a request that does not queue; times in us. After a_expiry the client has abandoned the claim
--            and has sent the release that undoes it: the claim has no effect, and returns NULLs and the clock.
-- Atomicity: one transaction of its own. The advisory lock on the name is taken first and every later statement sees what was
--            committed before: this requires READ COMMITTED, so any other level is refused.
-- Cost:      independent of the number of waiters, unless they are counted.
-- Clock:     read once, after the advisory lock was taken. The transaction's own time is not used, because the transaction may
--            have waited long.
--
-- The token is drawn behind the advisory lock, which the transaction keeps until it is committed: no other grant of this name can
-- come between the draw and the commit.
CREATE OR REPLACE FUNCTION {p}_claim_4(
    a_name bytea, a_request bytea, a_mode bigint, a_conflicts bigint, a_slot bytea, a_owner text, a_label text,
    a_ttl bigint, a_place_ttl bigint, a_channel text, a_ticket bigint, a_durable boolean, a_counts boolean,
    a_expiry bigint)
RETURNS TABLE (r_token bigint, r_left bigint, r_place bigint, r_ahead bigint, r_clock bigint)
LANGUAGE plpgsql {pinned} AS $body$
DECLARE
    v_now bigint;
    v_until bigint;
    v_is_moved boolean;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a claim needs READ COMMITTED' USING ERRCODE = 'invalid_transaction_state';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('{p}:' || encode(a_name, 'hex'), 0));
    v_now := {now};
    r_clock := v_now;
    -- Compared behind the lock, so that the wait for the lock counts.
    IF v_now > a_expiry THEN
        RETURN NEXT;
        RETURN;
    END IF;
    IF EXISTS (SELECT 1 FROM {p}_holds WHERE name = a_name)
        OR EXISTS (SELECT 1 FROM {p}_waiters WHERE name = a_name)
        OR EXISTS (SELECT 1 FROM {p}_broken WHERE name = a_name AND request = a_request)
    THEN
        -- A copy of a claim that arrives after the release of its request, or after a break by force.
        IF EXISTS (SELECT 1 FROM {p}_broken WHERE name = a_name AND request = a_request AND expires_at > v_now) THEN
            r_left := 1000;
            RETURN NEXT;
            RETURN;
        END IF;
        -- A queue entry need not survive a crash of the server: the request joins the queue again.
        PERFORM set_config('synchronous_commit', 'off', true);
        DELETE FROM {p}_holds WHERE name = a_name AND expires_at <= v_now;
        -- The deleted holds may have unblocked waiters, this request or others. This is checked at each claim, so that a queue
        -- recovers from any change of the tables.
        PERFORM pg_notify(s.r_channel, s.r_ticket || ' ' || s.r_place || ' ' || s.r_token || ' ' || s.r_left)
        FROM {p}_settle_3(a_name, a_request, a_ttl, v_now) AS s WHERE s.r_request <> a_request;
        -- The request holds the lock: it was handed over, now or before, or the reply to an earlier claim was lost.
        SELECT token, expires_at - v_now INTO r_token, r_left FROM {p}_holds
        WHERE name = a_name AND slot = a_slot AND request = a_request;
        IF FOUND THEN
            RETURN NEXT;
            RETURN;
        END IF;
        SELECT seq, expires_at, channel <> a_channel OR ticket <> a_ticket INTO r_place, v_until, v_is_moved
        FROM {p}_waiters WHERE name = a_name AND request = a_request;
        -- The last conflicting entry ahead: of the waiters, else of the holders.
        SELECT expires_at - v_now INTO r_left FROM {p}_waiters
        WHERE name = a_name AND mode & a_conflicts <> 0 AND seq < coalesce(r_place, {max}) AND expires_at > v_now
        ORDER BY seq DESC LIMIT 1;
        IF NOT FOUND THEN
            SELECT expires_at - v_now INTO r_left FROM {p}_holds
            WHERE name = a_name AND mode & a_conflicts <> 0
            ORDER BY token DESC LIMIT 1;
        END IF;
        IF FOUND THEN
            IF a_counts THEN
                r_ahead := (SELECT count(*) FROM {p}_holds WHERE name = a_name AND mode & a_conflicts <> 0)
                    + (SELECT count(*) FROM {p}_waiters
                       WHERE name = a_name AND mode & a_conflicts <> 0 AND seq < coalesce(r_place, {max}));
            END IF;
            IF r_place IS NULL AND a_place_ttl > 0 THEN
                INSERT INTO {p}_waiters
                    (name, request, slot, mode, conflicts, owner, label, durable, channel, ticket, since, expires_at)
                VALUES (a_name, a_request, a_slot, a_mode, a_conflicts, a_owner, a_label, a_durable, a_channel,
                    a_ticket, v_now, v_now + a_place_ttl)
                RETURNING seq INTO r_place;
            ELSIF v_until - v_now < a_place_ttl - a_place_ttl / 8 OR (v_is_moved AND a_place_ttl > 0) THEN
                -- Extended, because a lock that is handed over lasts for the rest of the queue entry's lease; but claims in quick
                -- succession cost no write. A client of a lock service may continue on another server: the one that has sent
                -- the last claim is notified of the grant.
                UPDATE {p}_waiters SET expires_at = v_now + a_place_ttl, channel = a_channel, ticket = a_ticket
                WHERE name = a_name AND request = a_request;
            END IF;
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    {durable}
    INSERT INTO {p}_holds (token, name, slot, request, mode, conflicts, owner, label, since, expires_at)
    VALUES (nextval('{p}_tokens'), a_name, a_slot, a_request, a_mode, a_conflicts, a_owner, a_label, v_now,
        v_now + a_ttl)
    RETURNING token INTO r_token;
    r_left := a_ttl;
    RETURN NEXT;
END $body$;
