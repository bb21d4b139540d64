-- Grants the lock to every waiter that can hold it now, first come, first served: to each waiter that conflicts neither with a holder
-- nor with a waiter ahead of it. Returns the grants.
--
-- Inputs:    a_request, if it is granted the lock, gets a_ttl, because its client is active. Every other grant lasts for the rest
--            of the queue entry's lease, and its client extends it when it is notified, so a dead waiter holds the lock no longer
--            than it would have waited.
-- Atomicity: part of a transaction that holds the advisory lock on the name and has deleted its expired holds.
-- Cost:      reads the waiters that are granted the lock, the expired ones between them, and the next one. Expired waiters behind
--            it stay: a later call or the sweep deletes them. Each waiter is fetched by a query with a limit of one row: without
--            statistics of a queue that has just grown, the planner would read and sort the whole queue for a query without a
--            limit.
-- Clock:     the caller's, and read again for each grant.
CREATE OR REPLACE FUNCTION {p}_settle_3(a_name bytea, a_request bytea, a_ttl bigint, a_now bigint)
RETURNS TABLE (r_request bytea, r_channel text, r_ticket bigint, r_place bigint, r_token bigint, r_left bigint)
LANGUAGE plpgsql {pinned} AS $body$
DECLARE
    v_ahead bigint := coalesce((SELECT bit_or(conflicts) FROM {p}_holds WHERE name = a_name), 0);
    v_seq bigint := 0;
    v_until bigint;
    w {p}_waiters;
BEGIN
    LOOP
        -- Every mode that can wait conflicts with the entries ahead: no later waiter can be granted the lock.
        EXIT WHEN v_ahead & {all} = {all};
        SELECT * INTO w FROM {p}_waiters WHERE name = a_name AND seq > v_seq ORDER BY seq LIMIT 1;
        EXIT WHEN NOT FOUND;
        v_seq := w.seq;
        IF w.expires_at <= a_now THEN
            DELETE FROM {p}_waiters WHERE name = a_name AND request = w.request AND expires_at <= a_now;
            -- A keep-alive may have extended it since it was read.
            w.expires_at := (SELECT expires_at FROM {p}_waiters WHERE name = a_name AND request = w.request);
            CONTINUE WHEN w.expires_at IS NULL;
        END IF;
        IF w.mode & v_ahead = 0 THEN
            -- A keep-alive may have extended it since it was read, and its client counts the lease from the time at which it sent
            -- that message: so the rest of the lease is counted from a later time.
            DELETE FROM {p}_waiters WHERE name = a_name AND request = w.request RETURNING expires_at INTO v_until;
            -- A sweep, which does not hold the advisory lock, may have deleted it since it was read.
            CONTINUE WHEN NOT FOUND;
            IF w.request = a_request THEN
                v_until := a_now + a_ttl;
                r_left := a_ttl;
            ELSE
                r_left := greatest(v_until - {now}, 0);
            END IF;
            INSERT INTO {p}_holds
                (token, name, slot, request, mode, conflicts, owner, label, since, expires_at)
            VALUES (nextval('{p}_tokens'), a_name, w.slot, w.request, w.mode, w.conflicts, w.owner, w.label, a_now,
                v_until)
            RETURNING token INTO r_token;
            IF w.durable THEN
                PERFORM set_config('synchronous_commit', 'on', true);
            END IF;
            r_request := w.request;
            r_channel := w.channel;
            r_ticket := w.ticket;
            r_place := w.seq;
            RETURN NEXT;
        END IF;
        v_ahead := v_ahead | w.conflicts;
    END LOOP;
END $body$;
