-- Releases a hold or withdraws a waiter, and grants the lock to the next waiters. The first row is (NULL, NULL, NULL, the clock, 1
-- if there was an entry or 0, the notice if the hold was broken by force before); NULL instead of the number if it had expired. The grants to waiters on a_channel follow:
-- (ticket, queue position, token, lease); the other waiters receive the same by NOTIFY.
--
-- Inputs:    the name, the request, and the channel of this process. For a_refused us from now a copy of a claim of the request may
--            arrive, and has no effect; 0 if none can. After a_expiry the client has abandoned the release, and another process that
--            knows the request may have renewed the hold: the call has no effect.
-- Atomicity: one transaction of its own, behind the advisory lock on the name.
-- Clock:     read once, after the advisory lock was taken.
--
-- The release is on the disk when it returns only if it has granted the lock: if a crash of the server undoes a release without a
-- grant, the restored hold expires. No other request can have been granted the lock in between, because such a grant is on the
-- disk together with everything that was committed before it.
CREATE OR REPLACE FUNCTION {p}_release_4(
    a_name bytea, a_request bytea, a_channel text, a_refused bigint, a_expiry bigint)
RETURNS TABLE (
    r_ticket bigint, r_place bigint, r_token bigint, r_left bigint, r_found bigint, r_notice text)
LANGUAGE plpgsql {pinned} AS $body$
DECLARE
    v_now bigint;
    s record;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a release needs READ COMMITTED' USING ERRCODE = 'invalid_transaction_state';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('{p}:' || encode(a_name, 'hex'), 0));
    v_now := {now};
    r_left := v_now;
    IF v_now > a_expiry THEN
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM set_config('synchronous_commit', CASE WHEN a_refused > 0 THEN 'on' ELSE 'off' END, true);
    DELETE FROM {p}_holds WHERE name = a_name AND slot IN ('', a_request) AND request = a_request;
    IF NOT FOUND THEN
        DELETE FROM {p}_waiters WHERE name = a_name AND request = a_request;
    END IF;
    r_found := CASE WHEN FOUND THEN 1 ELSE 0 END;
    IF r_found = 0 THEN
        -- It stays until the lease would have ended: the reply may be lost, and the release repeated.
        r_notice := (SELECT nullif(notice, '') FROM {p}_broken WHERE name = a_name AND request = a_request);
    END IF;
    IF a_refused > 0 THEN
        -- The record of a claim that is refused has an empty notice. One of a break keeps its notice, and refuses claims, too.
        INSERT INTO {p}_broken (name, request, notice, expires_at) VALUES (a_name, a_request, '', v_now + a_refused)
        ON CONFLICT (name, request) DO UPDATE SET expires_at = greatest({p}_broken.expires_at, excluded.expires_at);
    END IF;
    RETURN NEXT;
    r_found := NULL;
    r_notice := NULL;
    IF EXISTS (SELECT 1 FROM {p}_waiters WHERE name = a_name) THEN
        DELETE FROM {p}_holds WHERE name = a_name AND expires_at <= v_now;
        FOR s IN SELECT * FROM {p}_settle_3(a_name, NULL, 0, v_now) LOOP
            IF s.r_channel = a_channel THEN
                r_ticket := s.r_ticket;
                r_place := s.r_place;
                r_token := s.r_token;
                r_left := s.r_left;
                RETURN NEXT;
            ELSE
                -- Each transaction with a NOTIFY takes a lock of the whole server, so only grants of other processes are sent by
                -- it.
                PERFORM pg_notify(s.r_channel, s.r_ticket || ' ' || s.r_place || ' ' || s.r_token || ' ' || s.r_left);
            END IF;
        END LOOP;
    END IF;
END $body$;
