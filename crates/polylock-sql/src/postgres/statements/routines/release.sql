-- Releases if held, withdraws if waiting, and hands the lock to those whose turn it is then. Answers with (ticket, place,
-- token, lease) for those of them on a_channel; others are notified of the same.
--
-- Inputs:    none but names.
-- Atomicity: one transaction of its own, behind the advisory lock on the name.
-- Clock:     read once, after the advisory lock was taken.
--
-- On the disk when it returns only if it has handed the lock on: if a crash of the server undoes a mere release, the hold
-- that comes back runs out by itself. Nobody can have been granted the lock meanwhile, because that grant is on the disk
-- with all that came before it.
CREATE OR REPLACE FUNCTION {p}_release_1(a_name bytea, a_request bytea, a_channel text)
RETURNS TABLE (r_ticket bigint, r_place bigint, r_token bigint, r_left bigint)
LANGUAGE plpgsql AS $body$
DECLARE
    v_now bigint;
    s record;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a release needs READ COMMITTED' USING ERRCODE = 'invalid_transaction_state';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('{p}:' || encode(a_name, 'hex'), 0));
    PERFORM set_config('synchronous_commit', 'off', true);
    DELETE FROM {p}_holds WHERE name = a_name AND slot IN ('', a_request) AND request = a_request;
    IF NOT FOUND THEN
        DELETE FROM {p}_waiters WHERE name = a_name AND request = a_request;
    END IF;
    IF EXISTS (SELECT 1 FROM {p}_waiters WHERE name = a_name) THEN
        v_now := {now};
        DELETE FROM {p}_holds WHERE name = a_name AND expires_at <= v_now;
        DELETE FROM {p}_waiters WHERE name = a_name AND expires_at <= v_now;
        FOR s IN SELECT * FROM {p}_settle_1(a_name, NULL, 0, v_now) LOOP
            IF s.r_channel = a_channel THEN
                r_ticket := s.r_ticket;
                r_place := s.r_place;
                r_token := s.r_token;
                r_left := s.r_left;
                RETURN NEXT;
            ELSE
                -- Every transaction that notifies takes a lock of the whole server: only where it is needed.
                PERFORM pg_notify(s.r_channel, s.r_ticket || ' ' || s.r_place || ' ' || s.r_token || ' ' || s.r_left);
            END IF;
        END LOOP;
    END IF;
END $body$;
