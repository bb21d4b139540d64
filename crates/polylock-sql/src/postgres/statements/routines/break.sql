-- Takes a lock from all who hold it, and hands it to those whose turn it is then. Answers with who they were, live ones
-- only: (name, token, mode, owner, label, age, what was left of the lease).
--
-- Inputs:    none but the name.
-- Atomicity: one transaction of its own, behind the advisory lock on the name.
-- Clock:     read once, after the advisory lock was taken.
CREATE OR REPLACE FUNCTION {p}_break_1(a_name bytea)
RETURNS TABLE (r_name text, r_token bigint, r_mode bigint, r_owner text, r_label text, r_age bigint, r_left bigint)
LANGUAGE plpgsql AS $body$
DECLARE
    v_now bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'breaking a lock needs READ COMMITTED' USING ERRCODE = 'invalid_transaction_state';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('{p}:' || encode(a_name, 'hex'), 0));
    v_now := {now};
    RETURN QUERY DELETE FROM {p}_holds WHERE name = a_name AND expires_at > v_now
    RETURNING encode(name, 'hex'), token, mode, owner, label, v_now - since, expires_at - v_now;
    DELETE FROM {p}_holds WHERE name = a_name;
    DELETE FROM {p}_waiters WHERE name = a_name AND expires_at <= v_now;
    PERFORM pg_notify(s.r_channel, s.r_ticket || ' ' || s.r_place || ' ' || s.r_token || ' ' || s.r_left)
    FROM {p}_settle_1(a_name, NULL, 0, v_now) AS s;
END $body$;
