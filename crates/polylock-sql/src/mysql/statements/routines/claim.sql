-- Takes the lock if it is the request's turn; otherwise joins the queue, or extends its queue entry, if the request queues.
-- Returns (token, lease, ...) if it holds the lock now, otherwise (NULL, rest of its lease, request, number of conflicting
-- entries ahead if a_counts is 1) for the last conflicting entry ahead. The fifth column is the clock, and the sixth one the
-- queue position, if it has one: a number that no other position and no token of the name has.
--
-- Inputs:    a_slot is empty for an exclusive request; a_place_ttl is 0 for one that does not queue; times in us. After a_expiry
--            the client has abandoned the claim and has sent the release that undoes it: the claim has no effect, and returns
--            NULLs and the clock.
-- Atomicity: one transaction of its own, at READ COMMITTED, so that each statement sees what was committed before it. The gate is
--            locked first and until the end, so the claims of one name are serialized. Renewals, releases, breaks and sweeps do
--            not lock the gate, and conflict with it on the rows. The result is sent after the commit, so a client that has
--            stopped blocks no other request.
-- Clock:     read once, after the gate was locked, because in a procedure each statement has its own time.
--
-- The token is drawn together with the gate, and is on the disk with the hold: no other grant of this name comes in between, and
-- a crash keeps or undoes both. A grant deletes every expired hold of its name, and every expired waiter ahead of it, so that
-- none of them becomes live again when the clock is set back. Expired waiters behind it are deleted by a later grant or the
-- sweep.
CREATE PROCEDURE /*!80029 IF NOT EXISTS */ /*M! IF NOT EXISTS */ {p}_claim_4(
    a_name VARBINARY(255), a_request BINARY(16), a_mode BIGINT, a_conflicts BIGINT, a_slot VARBINARY(16),
    a_owner VARBINARY(255), a_label VARBINARY(255), a_ttl BIGINT, a_place_ttl BIGINT, a_counts BIGINT, a_expiry BIGINT)
MODIFIES SQL DATA
SQL SECURITY INVOKER
claim: BEGIN
    DECLARE v_shard BIGINT DEFAULT crc32(a_name) & 1023;
    DECLARE v_now, v_token, v_held, v_left, v_seq, v_until, v_ahead, v_found BIGINT;
    DECLARE v_behind BINARY(16);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        RESIGNAL;
    END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
    START TRANSACTION;
    UPDATE {p}_gates SET token = last_insert_id(token + 1) WHERE shard = v_shard;
    IF row_count() = 0 THEN
        -- The table of gates was emptied. Of several claims that create the gate again, the first one inserts it; the others wait
        -- for its commit. The number begins with the time, as in `schema.sql`.
        INSERT IGNORE INTO {p}_gates (shard, token) VALUES (v_shard, {now});
        UPDATE {p}_gates SET token = last_insert_id(token + 1) WHERE shard = v_shard;
    END IF;
    SET v_token = last_insert_id();
    SET v_now = {now};
    -- Compared behind the gate, so that the wait for it counts.
    IF v_now > a_expiry THEN
        ROLLBACK;
        SELECT NULL, NULL, NULL, NULL, v_now;
        LEAVE claim;
    END IF;
    -- The usual case without other entries needs no further checks.
    SELECT EXISTS (SELECT 1 FROM {p}_holds WHERE name = a_name)
        OR EXISTS (SELECT 1 FROM {p}_waiters WHERE name = a_name)
        OR EXISTS (SELECT 1 FROM {p}_broken WHERE name = a_name AND request = a_request)
        INTO v_found;
    IF v_found = 0 THEN
        INSERT INTO {p}_holds (name, slot, request, token, mode, owner, label, since, expires_at)
        VALUES (a_name, a_slot, a_request, v_token, a_mode, a_owner, a_label, v_now, v_now + a_ttl);
        COMMIT;
        SELECT v_token, a_ttl, NULL, 0, v_now;
        LEAVE claim;
    END IF;
    -- First read without locks, so that the claim waits for a renewal or release in progress only if that may be too late.
    SELECT count(*) INTO v_found FROM {p}_holds WHERE name = a_name AND expires_at <= v_now;
    IF v_found > 0 THEN
        DELETE FROM {p}_holds WHERE name = a_name AND expires_at <= v_now;
    END IF;
    -- Both at one moment: a break by force removes a hold and refuses its request in one transaction, which does not lock the gate.
    SELECT max(token), max(expires_at) - v_now, EXISTS (
        SELECT 1 FROM {p}_broken WHERE name = a_name AND request = a_request AND expires_at > v_now)
        INTO v_held, v_left, v_found
    FROM {p}_holds WHERE name = a_name AND slot = a_slot AND request = a_request;
    -- A copy of a claim that arrives after the release of its request, or after a break by force.
    IF v_found > 0 THEN
        ROLLBACK;
        SELECT NULL, 1000, a_request, NULL, v_now;
        LEAVE claim;
    END IF;
    -- The request holds the lock already: the reply to an earlier claim was lost. The commit guarantees that the grant is on the
    -- disk.
    IF v_held IS NOT NULL THEN
        COMMIT;
        SELECT v_held, v_left, NULL, 0, v_now;
        LEAVE claim;
    END IF;
    SELECT seq, expires_at INTO v_seq, v_until FROM {p}_waiters WHERE name = a_name AND request = a_request;
    -- The last conflicting entry ahead: of the waiters, else of the holders.
    SELECT request, expires_at - v_now INTO v_behind, v_left FROM {p}_waiters
    WHERE name = a_name AND mode & a_conflicts <> 0 AND seq < coalesce(v_seq, {max}) AND expires_at > v_now
    ORDER BY seq DESC LIMIT 1;
    IF v_behind IS NULL THEN
        SELECT request, expires_at - v_now INTO v_behind, v_left FROM {p}_holds
        WHERE name = a_name AND mode & a_conflicts <> 0
        ORDER BY token DESC LIMIT 1;
    END IF;
    IF v_behind IS NOT NULL THEN
        IF a_counts = 1 THEN
            SELECT (SELECT count(*) FROM {p}_holds WHERE name = a_name AND mode & a_conflicts <> 0)
                + (SELECT count(*) FROM {p}_waiters
                   WHERE name = a_name AND mode & a_conflicts <> 0 AND seq < coalesce(v_seq, {max})
                   AND expires_at > v_now)
                INTO v_ahead;
        END IF;
        IF a_place_ttl > 0 AND (v_seq IS NULL OR v_until - v_now < a_place_ttl DIV 2) THEN
            IF v_seq IS NULL THEN
                -- Greater than all tokens and positions before it, and smaller than the tokens of later grants.
                SELECT greatest(v_token, coalesce(max(seq), 0) + 1) INTO v_seq FROM {p}_waiters WHERE name = a_name;
                INSERT INTO {p}_waiters (name, request, seq, mode, owner, label, since, expires_at)
                VALUES (a_name, a_request, v_seq, a_mode, a_owner, a_label, v_now, v_now + a_place_ttl);
            ELSE
                UPDATE {p}_waiters SET expires_at = v_now + a_place_ttl WHERE name = a_name AND request = a_request;
            END IF;
            COMMIT;
        ELSE
            -- A repeated check costs no write and no disk access; expired entries are deleted by the next grant.
            ROLLBACK;
        END IF;
        SELECT NULL, v_left, v_behind, v_ahead, v_now, v_seq;
        LEAVE claim;
    END IF;
    SELECT EXISTS (
        SELECT 1 FROM {p}_waiters WHERE name = a_name AND seq < coalesce(v_seq, {max}) AND expires_at <= v_now)
        INTO v_found;
    IF v_found > 0 THEN
        DELETE FROM {p}_waiters WHERE name = a_name AND seq < coalesce(v_seq, {max}) AND expires_at <= v_now;
    END IF;
    IF v_seq IS NOT NULL THEN
        DELETE FROM {p}_waiters WHERE name = a_name AND request = a_request;
    END IF;
    INSERT INTO {p}_holds (name, slot, request, token, mode, owner, label, since, expires_at)
    VALUES (a_name, a_slot, a_request, v_token, a_mode, a_owner, a_label, v_now, v_now + a_ttl);
    COMMIT;
    SELECT v_token, a_ttl, NULL, 0, v_now;
END
