-- Takes the lock if it is the request's turn; else, if it queues, joins the queue or keeps its place. Answers with
-- (token, lease, ...) if it holds the lock now, otherwise with (NULL, what is left of its lease, request, number of
-- conflicting entries ahead if a_counts is 1) for the last of those in its way. The fifth column is the clock.
--
-- Inputs:    a_slot is empty for an exclusive request; a_place_ttl is 0 for one that does not queue; times in us. After a_expiry
--            the client has abandoned the claim and has sent the release that undoes it: the claim does nothing, and answers
--            with NULLs and the clock.
-- Atomicity: one transaction of its own, at READ COMMITTED, so that each statement sees what was committed before it. The
--            gate is locked first and kept until the end: of the claims of one name there is one at a time. Renewals,
--            releases, breaks and sweeps do not take the gate, and are met at the rows. The answer is sent after the commit, so
--            a client that has stopped keeps nobody out.
-- Clock:     read once, after the gate was locked: in a procedure each statement has a time of its own.
--
-- The token is drawn with the gate, and is on the disk with the hold: no grant of this name comes between, and none of it is
-- undone without the other. A grant deletes every expired hold of its name, and every expired waiter before it: what it overrides must
-- not come back when the clock is set back. Expired waiters behind it are deleted by a later grant or the sweep.
CREATE PROCEDURE /*!80029 IF NOT EXISTS */ /*M! IF NOT EXISTS */ {p}_claim_2(
    a_name VARBINARY(255), a_request BINARY(16), a_mode BIGINT, a_conflicts BIGINT, a_slot VARBINARY(16),
    a_owner VARBINARY(255), a_label VARBINARY(255), a_ttl BIGINT, a_place_ttl BIGINT, a_counts BIGINT, a_expiry BIGINT)
MODIFIES SQL DATA
SQL SECURITY INVOKER
claim: BEGIN
    DECLARE v_shard BIGINT DEFAULT crc32(a_name) & 1023;
    DECLARE v_now, v_token, v_held, v_left, v_seq, v_until, v_ahead BIGINT;
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
        -- The table of gates was emptied. Of several claims that make the gate anew the first one inserts it, behind the others'
        -- backs until it commits. Its number begins with the time, as in `schema.sql`.
        INSERT IGNORE INTO {p}_gates (shard, token) VALUES (v_shard, {now});
        UPDATE {p}_gates SET token = last_insert_id(token + 1) WHERE shard = v_shard;
    END IF;
    SET v_token = last_insert_id();
    SET v_now = {now};
    -- Behind the gate: the wait for it counts.
    IF v_now > a_expiry THEN
        ROLLBACK;
        SELECT NULL, NULL, NULL, NULL, v_now;
        LEAVE claim;
    END IF;
    -- Mostly there is nobody: no need to look any closer.
    IF NOT EXISTS (SELECT 1 FROM {p}_holds WHERE name = a_name)
        AND NOT EXISTS (SELECT 1 FROM {p}_waiters WHERE name = a_name)
    THEN
        INSERT INTO {p}_holds (name, slot, request, token, mode, owner, label, since, expires_at)
        VALUES (a_name, a_slot, a_request, v_token, a_mode, a_owner, a_label, v_now, v_now + a_ttl);
        COMMIT;
        SELECT v_token, a_ttl, NULL, 0, v_now;
        LEAVE claim;
    END IF;
    -- Looked for without locks first: a renewal or release under way is waited for only if it may be too late.
    IF EXISTS (SELECT 1 FROM {p}_holds WHERE name = a_name AND expires_at <= v_now) THEN
        DELETE FROM {p}_holds WHERE name = a_name AND expires_at <= v_now;
    END IF;
    -- Held already: the answer to an earlier claim was lost. Committing makes sure that it is on the disk by now.
    SELECT token, expires_at - v_now INTO v_held, v_left FROM {p}_holds
    WHERE name = a_name AND slot = a_slot AND request = a_request;
    IF v_held IS NOT NULL THEN
        COMMIT;
        SELECT v_held, v_left, NULL, 0, v_now;
        LEAVE claim;
    END IF;
    SELECT seq, expires_at INTO v_seq, v_until FROM {p}_waiters WHERE name = a_name AND request = a_request;
    -- The last of those in its way: of the waiters before it, else of the holders.
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
            SET v_ahead = (SELECT count(*) FROM {p}_holds WHERE name = a_name AND mode & a_conflicts <> 0)
                + (SELECT count(*) FROM {p}_waiters
                   WHERE name = a_name AND mode & a_conflicts <> 0 AND seq < coalesce(v_seq, {max})
                   AND expires_at > v_now);
        END IF;
        IF a_place_ttl > 0 AND (v_seq IS NULL OR v_until - v_now < a_place_ttl DIV 2) THEN
            IF v_seq IS NULL THEN
                SET v_seq = coalesce((SELECT max(seq) FROM {p}_waiters WHERE name = a_name), 0) + 1;
                INSERT INTO {p}_waiters (name, request, seq, mode, owner, label, since, expires_at)
                VALUES (a_name, a_request, v_seq, a_mode, a_owner, a_label, v_now, v_now + a_place_ttl);
            ELSE
                UPDATE {p}_waiters SET expires_at = v_now + a_place_ttl WHERE name = a_name AND request = a_request;
            END IF;
            COMMIT;
        ELSE
            -- Looking again costs no write and no disk; what had expired is cleared by who is granted the lock.
            ROLLBACK;
        END IF;
        SELECT NULL, v_left, v_behind, v_ahead, v_now;
        LEAVE claim;
    END IF;
    IF EXISTS (SELECT 1 FROM {p}_waiters WHERE name = a_name AND seq < coalesce(v_seq, {max}) AND expires_at <= v_now) THEN
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
