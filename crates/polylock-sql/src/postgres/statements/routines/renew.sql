-- Extends a live hold to its TTL from now; false if there is none.
--
-- Inputs:    a_ttl in us.
-- Atomicity: one statement. It meets a claim that clears what has expired at the row: one of the two finds it gone or
--            extended.
-- Clock:     read once.
--
-- As durable as the grant: a holder must not be told of time that a crash of the server takes back.
CREATE OR REPLACE FUNCTION {p}_renew_1(a_name bytea, a_request bytea, a_ttl bigint, a_durable boolean)
RETURNS bigint
LANGUAGE plpgsql AS $body$
DECLARE
    v_now bigint := {now};
BEGIN
    {durable}
    UPDATE {p}_holds SET expires_at = v_now + a_ttl
    WHERE name = a_name AND slot IN ('', a_request) AND request = a_request AND expires_at > v_now;
    RETURN CASE WHEN FOUND THEN 1 ELSE 0 END;
END $body$;
