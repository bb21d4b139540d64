-- Breaks holds of a lock. The first row is (NULL, 1 if it was in time, ..., the clock instead of the rest of a lease). The broken
-- holds follow: (name, token, mode, owner, label, age, rest of the lease, notice).
--
-- Inputs:    a_tokens of the holds, separated by commas; others stay as they are. a_notice for the holders. With a_force the holds are removed and the lock is granted to the next waiters; otherwise
--            the holds are marked, and exclude other requests until their release or the end of their lease. a_channel is the
--            channel on which the holders' processes listen for breaks. After a_expiry the client has abandoned the break, and
--            the call has no effect.
-- Atomicity: one transaction of its own, behind the advisory lock on the name. It conflicts with renewals on the rows.
-- Clock:     read once, after the advisory lock was taken.
CREATE OR REPLACE FUNCTION {p}_break_3(
    a_name bytea, a_tokens text, a_notice text, a_force boolean, a_channel text, a_expiry bigint)
RETURNS TABLE (
    r_name text, r_token bigint, r_mode bigint, r_owner text, r_label text, r_age bigint, r_left bigint, r_notice text)
LANGUAGE plpgsql {pinned} AS $body$
DECLARE
    v_now bigint;
    v_tokens bigint[] := string_to_array(a_tokens, ',')::bigint[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'breaking a lock needs READ COMMITTED' USING ERRCODE = 'invalid_transaction_state';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('{p}:' || encode(a_name, 'hex'), 0));
    v_now := {now};
    r_token := CASE WHEN v_now > a_expiry THEN 0 ELSE 1 END;
    r_left := v_now;
    RETURN NEXT;
    IF v_now > a_expiry THEN
        RETURN;
    END IF;
    -- A second break does not replace the notice of the first one. From here on no renewal extends these holds.
    UPDATE {p}_holds SET notice = coalesce(notice, a_notice)
    WHERE name = a_name AND token = ANY (v_tokens) AND expires_at > v_now;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT encode(name, 'hex'), token, mode, owner, label, v_now - greatest(since, 0), expires_at - v_now, notice
    FROM {p}_holds WHERE name = a_name AND token = ANY (v_tokens) AND expires_at > v_now;
    PERFORM pg_notify(a_channel, encode(a_name, 'hex'));
    IF a_force THEN
        INSERT INTO {p}_broken (name, request, notice, expires_at)
        SELECT name, request, coalesce(nullif(notice, ''), a_notice), expires_at FROM {p}_holds
        WHERE name = a_name AND token = ANY (v_tokens) AND expires_at > v_now
        ON CONFLICT (name, request) DO UPDATE SET
            notice = excluded.notice, expires_at = greatest({p}_broken.expires_at, excluded.expires_at);
        DELETE FROM {p}_holds WHERE name = a_name AND (token = ANY (v_tokens) OR expires_at <= v_now);
        PERFORM pg_notify(s.r_channel, s.r_ticket || ' ' || s.r_place || ' ' || s.r_token || ' ' || s.r_left)
        FROM {p}_settle_3(a_name, NULL, 0, v_now) AS s;
    END IF;
END $body$;
