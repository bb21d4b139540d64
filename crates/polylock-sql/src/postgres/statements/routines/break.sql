-- Takes a lock from all who hold it, and wakes all who wait for it. Answers with who they were, live ones only: (name,
-- token, mode, owner, label, age, what was left of the lease).
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
    PERFORM pg_advisory_xact_lock(hashtextextended('{p}:' || encode(a_name, 'hex'), 0));
    v_now := {now};
    RETURN QUERY DELETE FROM {p}_holds WHERE name = a_name AND expires_at > v_now
    RETURNING encode(name, 'hex'), token, mode, owner, label, v_now - since, expires_at - v_now;
    DELETE FROM {p}_holds WHERE name = a_name;
    PERFORM pg_notify(channel, ticket::text) FROM {p}_waiters WHERE name = a_name;
END $body$;
