-- Extends live holds that are not marked as broken, and live queue entries. Answers with a letter for each request, in their order:
-- H held, Q queued, B broken, G gone, C contested: another transaction is changing the entry.
--
-- Inputs:    a_batch has for each request one byte with the length of its name, the name, its id, a byte that is 1 if it is
--            exclusive, its TTL and that of its queue entry in us, in eight bytes each.
-- Atomicity: one transaction, which never waits for a row: two that wait for each other would cost one of them its work. An entry
--            meets a claim that clears what has expired, and a break, at its row: one of the two finds the other's change.
-- Clock:     read before each entry.
--
-- As durable as the grants: a crash of the server must not take back time that a holder counts on.
CREATE OR REPLACE FUNCTION {p}_keep_alive_2(a_batch bytea, a_durable boolean)
RETURNS TABLE (r_states text)
LANGUAGE plpgsql {pinned} AS $body$
DECLARE
    v_at integer := 1;
    v_length integer;
    v_name bytea;
    v_request bytea;
    v_slot bytea;
    v_ttl bigint;
    v_place_ttl bigint;
    v_now bigint;
    v_holds boolean := false;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    r_states := '';
    WHILE v_at <= length(a_batch) LOOP
        v_length := get_byte(a_batch, v_at - 1);
        v_name := substring(a_batch FROM v_at + 1 FOR v_length);
        v_at := v_at + 1 + v_length;
        v_request := substring(a_batch FROM v_at FOR 16);
        v_slot := CASE WHEN get_byte(a_batch, v_at + 15) = 1 THEN ''::bytea ELSE v_request END;
        v_ttl := ('x' || encode(substring(a_batch FROM v_at + 17 FOR 8), 'hex'))::bit(64)::bigint;
        v_place_ttl := ('x' || encode(substring(a_batch FROM v_at + 25 FOR 8), 'hex'))::bit(64)::bigint;
        v_at := v_at + 33;
        v_now := {now};

        UPDATE {p}_holds SET expires_at = v_now + v_ttl WHERE (name, slot) = (
            SELECT name, slot FROM {p}_holds
            WHERE name = v_name AND slot = v_slot AND request = v_request AND expires_at > v_now AND notice IS NULL
            FOR UPDATE SKIP LOCKED);
        IF FOUND THEN
            r_states := r_states || 'H';
            v_holds := true;
            CONTINUE;
        END IF;
        UPDATE {p}_waiters SET expires_at = v_now + v_place_ttl WHERE (name, request) = (
            SELECT name, request FROM {p}_waiters
            WHERE name = v_name AND request = v_request AND expires_at > v_now
            FOR UPDATE SKIP LOCKED);
        IF FOUND THEN
            r_states := r_states || 'Q';
            CONTINUE;
        END IF;
        -- Each statement sees what was committed before it: an entry that is there now was locked, or has only just become a hold.
        r_states := r_states || CASE
            WHEN EXISTS (SELECT 1 FROM {p}_holds WHERE name = v_name AND slot = v_slot AND request = v_request
                AND expires_at > v_now AND notice IS NULL)
                OR EXISTS (SELECT 1 FROM {p}_waiters WHERE name = v_name AND request = v_request AND expires_at > v_now)
                THEN 'C'
            WHEN EXISTS (SELECT 1 FROM {p}_holds WHERE name = v_name AND slot = v_slot AND request = v_request
                AND notice IS NOT NULL)
                OR EXISTS (SELECT 1 FROM {p}_broken WHERE name = v_name AND request = v_request)
                THEN 'B'
            ELSE 'G' END;
    END LOOP;
    IF v_holds THEN
        {durable}
    END IF;
    RETURN NEXT;
END $body$;
