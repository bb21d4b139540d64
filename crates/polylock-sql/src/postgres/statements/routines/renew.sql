-- Extends a live hold to its TTL from now: (1, NULL). Otherwise (0, notice): the hold was broken, or (0, NULL): there is none.
--
-- Inputs:    a_ttl in us.
-- Atomicity: one statement extends. It meets a claim that clears what has expired, and a break, at the row: one of the two
--            finds the other's change.
-- Clock:     read once.
--
-- As durable as the grant: a crash of the server must not take back time that a holder counts on.
CREATE OR REPLACE FUNCTION {p}_renew_2(a_name bytea, a_request bytea, a_ttl bigint, a_durable boolean)
RETURNS TABLE (r_renewed bigint, r_notice text)
LANGUAGE plpgsql {pinned} AS $body$
DECLARE
    v_now bigint := {now};
BEGIN
    {durable}
    UPDATE {p}_holds SET expires_at = v_now + a_ttl
    WHERE name = a_name AND slot IN ('', a_request) AND request = a_request AND expires_at > v_now AND notice IS NULL;
    r_renewed := CASE WHEN FOUND THEN 1 ELSE 0 END;
    IF r_renewed = 0 THEN
        r_notice := coalesce(
            (SELECT notice FROM {p}_holds WHERE name = a_name AND slot IN ('', a_request) AND request = a_request),
            (SELECT notice FROM {p}_broken WHERE name = a_name AND request = a_request));
    END IF;
    RETURN NEXT;
END $body$;
