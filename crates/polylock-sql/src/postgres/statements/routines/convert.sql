-- Converts a hold to another mode. Returns the hold after it, and the reason for leaving it as it was: (token, mode, rest of the lease of
-- a holder in the way, 1 if that waits for this hold or 0, the clock). The first two are NULL if there is no live hold, or it is marked
-- as broken; so is the fourth if the call had expired.
--
-- Inputs:    a_from is the token of the hold; with another token it is left as it is. a_mode is the new mode, a_conflicts its conflicts.
--            a_in_way has the modes of other holders that are in the way; none for a downgrade. a_held_conflicts has the conflicts of
--            the present mode. a_waiting has the bits of both modes if the conversion waits, otherwise 0. After a_expiry the client has
--            abandoned the conversion, and another process may have adopted the hold, with the same token: the call has no effect.
-- Atomicity: one transaction of its own, behind the advisory lock on the name. It conflicts with renewals on the row.
-- Clock:     read once, after the advisory lock was taken.
--
-- A hold that waits for a conversion has the bits of two modes, of which the greater one excludes all that the other does. So a hold
-- whose modes conflict with the present mode of this one waits for it. The slot is that of the mode in which the lock was claimed: an
-- exclusive hold that was downgraded keeps the empty one, which no other request can need before its release.
CREATE OR REPLACE FUNCTION {p}_convert_3(
    a_name bytea, a_request bytea, a_from bigint, a_mode bigint, a_conflicts bigint, a_in_way bigint,
    a_held_conflicts bigint, a_waiting bigint, a_durable boolean, a_expiry bigint)
RETURNS TABLE (r_token bigint, r_mode bigint, r_left bigint, r_deadlock bigint, r_clock bigint)
LANGUAGE plpgsql {pinned} AS $body$
DECLARE
    v_now bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a conversion needs READ COMMITTED' USING ERRCODE = 'invalid_transaction_state';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('{p}:' || encode(a_name, 'hex'), 0));
    {durable}
    v_now := {now};
    r_clock := v_now;
    IF v_now > a_expiry THEN
        RETURN NEXT;
        RETURN;
    END IF;
    r_deadlock := 0;
    DELETE FROM {p}_holds WHERE name = a_name AND expires_at <= v_now;
    SELECT token, mode INTO r_token, r_mode FROM {p}_holds
    WHERE name = a_name AND slot IN ('', a_request) AND request = a_request AND notice IS NULL FOR UPDATE;
    IF r_token IS DISTINCT FROM a_from THEN
        RETURN NEXT;
        RETURN;
    END IF;
    r_left := (SELECT max(expires_at) - v_now FROM {p}_holds
        WHERE name = a_name AND request <> a_request AND mode & a_in_way <> 0);
    IF r_left IS NULL THEN
        UPDATE {p}_holds SET token = nextval('{p}_tokens'), mode = a_mode, conflicts = a_conflicts
        WHERE name = a_name AND slot IN ('', a_request) AND request = a_request
        RETURNING token, mode INTO r_token, r_mode;
    ELSIF EXISTS (SELECT 1 FROM {p}_holds WHERE name = a_name AND request <> a_request AND mode & a_held_conflicts <> 0) THEN
        r_deadlock := 1;
    ELSIF a_waiting <> 0 AND NOT EXISTS (
        SELECT 1 FROM {p}_holds
        WHERE name = a_name AND request <> a_request AND mode & a_in_way <> 0 AND mode & (mode - 1) <> 0)
    THEN
        UPDATE {p}_holds SET mode = a_waiting, conflicts = a_conflicts
        WHERE name = a_name AND slot IN ('', a_request) AND request = a_request;
    END IF;
    RETURN NEXT;
END $body$;
