-- Parks a hold: it ends in a certain time, whether its lease ends earlier or later, and is not extended any more. Until then it
-- excludes other requests. Returns (1 if the hold is parked, now or before, or 0; the notice if it was broken; the clock), and NULL
-- instead of the number if the call had expired.
--
-- Inputs:    a_token of the hold: a conversion has changed it, so a copy that arrives later finds no such hold. a_left is the time
--            until the end in us. For a_refused us from now a copy of a claim of the request may arrive, also after that end, and
--            takes nothing; 0 if none can. After a_expiry the client has abandoned the call, and another process may have renewed the
--            hold: the call has no effect.
-- Atomicity: one transaction of its own, behind the advisory lock on the name. It conflicts with renewals on the row.
-- Clock:     read once, after the advisory lock was taken.
--
-- A parked hold is marked as a broken one, with an empty notice.
CREATE OR REPLACE FUNCTION {p}_park_4(
    a_name bytea, a_request bytea, a_token bigint, a_left bigint, a_durable boolean, a_refused bigint, a_expiry bigint)
RETURNS TABLE (r_parked bigint, r_notice text, r_clock bigint)
LANGUAGE plpgsql {pinned} AS $body$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'parking a hold needs READ COMMITTED' USING ERRCODE = 'invalid_transaction_state';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('{p}:' || encode(a_name, 'hex'), 0));
    {durable}
    r_clock := {now};
    IF r_clock > a_expiry THEN
        RETURN NEXT;
        RETURN;
    END IF;
    UPDATE {p}_holds SET expires_at = r_clock + a_left, notice = ''
    WHERE name = a_name AND slot IN ('', a_request) AND request = a_request AND token = a_token AND expires_at > r_clock
    AND notice IS NULL;
    IF FOUND THEN
        r_parked := 1;
    ELSE
        r_notice := coalesce(
            (SELECT notice FROM {p}_holds
            WHERE name = a_name AND slot IN ('', a_request) AND request = a_request AND token = a_token
            AND expires_at > r_clock),
            (SELECT nullif(notice, '') FROM {p}_broken WHERE name = a_name AND request = a_request));
        r_parked := CASE WHEN r_notice = '' THEN 1 ELSE 0 END;
    END IF;
    IF r_parked = 1 AND a_refused > 0 THEN
        INSERT INTO {p}_broken (name, request, notice, expires_at) VALUES (a_name, a_request, '', r_clock + a_refused)
        ON CONFLICT (name, request) DO UPDATE SET expires_at = greatest({p}_broken.expires_at, excluded.expires_at);
    END IF;
    RETURN NEXT;
END $body$;
