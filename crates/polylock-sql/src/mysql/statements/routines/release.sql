-- Releases a hold or withdraws a waiter, and grants the lock to every waiter that can hold it now, first come, first served: to
-- each waiter that conflicts neither with a holder nor with a waiter ahead of it. Returns (1 if there was an entry or 0, the
-- notice if the hold was broken by force before, the grants). The grants are a text with (request in hexadecimal digits, queue
-- position, token, rest of the lease) for each waiter that was granted the lock, separated by spaces, with a comma after each
-- grant.
--
-- A grant lasts for the rest of the queue entry's lease, and its holder extends it; so a dead waiter holds the lock no longer
-- than it would have waited.
--
-- Inputs:    the name, the request, and the slot of its mode. For a_refused us from now a copy of a claim of the request may arrive,
--            and has no effect; 0 if none can. After a_expiry the client has abandoned the release, and another process that knows
--            the request may have renewed the hold: the call has no effect, and returns NULL and the clock in the fourth column.
-- Atomicity: without waiters and a_refused, one statement that locks one row, found by its complete key, and no gate. With waiters, one
--            transaction at READ COMMITTED, behind the gate: the claims and hand-overs of one name are serialized. A request that
--            joins the queue during that one statement is found after it. A claim that has already read the hold and commits even
--            later is not found: its client detects that the hold is gone. The result is sent after the commit, so a client that
--            has stopped blocks no other request.
-- Cost:      reads the waiters that are granted the lock, the expired ones between them, and the next one. After 256 grants the
--            remaining waiters, which share the lock with these, have to claim: the gate is not locked any longer.
-- Clock:     read once, after the gate was locked, and again for each grant.
CREATE PROCEDURE /*!80029 IF NOT EXISTS */ /*M! IF NOT EXISTS */ {p}_release_6(
    a_name VARBINARY(255), a_request BINARY(16), a_slot VARBINARY(16), a_refused BIGINT, a_expiry BIGINT)
MODIFIES SQL DATA
SQL SECURITY INVOKER
release_lock: BEGIN
    DECLARE v_shard BIGINT DEFAULT crc32(a_name) & 1023;
    DECLARE v_released, v_found, v_ahead, v_seq, v_granted BIGINT DEFAULT 0;
    DECLARE v_now, v_token, v_mode, v_until, v_expired BIGINT;
    DECLARE v_next BINARY(16);
    DECLARE v_owner, v_label VARBINARY(255);
    DECLARE v_notice VARBINARY(1024);
    DECLARE v_grants LONGTEXT DEFAULT '';
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        IF v_released = 0 THEN
            RESIGNAL;
        END IF;
        -- Released, but not handed over: the waiters detect the release themselves.
        SELECT v_released, NULL, '', NULL;
    END;
    IF a_refused = 0 AND NOT EXISTS (SELECT 1 FROM {p}_waiters WHERE name = a_name) THEN
        DELETE FROM {p}_holds WHERE name = a_name AND slot = a_slot AND request = a_request;
        SET v_released = row_count();
        IF v_released = 0 THEN
            -- It stays until the lease would have ended: the reply may be lost, and the release repeated.
            SELECT max(nullif(notice, '')) INTO v_notice FROM {p}_broken WHERE name = a_name AND request = a_request;
        END IF;
        -- In this form the read waits for a claim that is about to join the queue, and has not found the release.
        IF v_released = 0 OR NOT EXISTS (SELECT 1 FROM {p}_waiters WHERE name = a_name) THEN
            SELECT v_released, v_notice, '', NULL;
            LEAVE release_lock;
        END IF;
    END IF;

    SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
    START TRANSACTION;
    -- If the gate was lost, the lock is not handed over: the next claim creates the gate again.
    SELECT token INTO v_token FROM {p}_gates WHERE shard = v_shard FOR UPDATE;
    SET v_now = {now};
    IF v_now > a_expiry THEN
        ROLLBACK;
        SELECT NULL, NULL, '', v_now;
        LEAVE release_lock;
    END IF;
    SET v_found = v_released;
    IF v_found = 0 THEN
        -- Before the grants, so that the withdrawn request is not granted the lock itself.
        DELETE FROM {p}_waiters WHERE name = a_name AND request = a_request;
        SET v_found = row_count();
    END IF;
    IF v_found = 0 THEN
        DELETE FROM {p}_holds WHERE name = a_name AND slot = a_slot AND request = a_request;
        SET v_found = row_count();
    END IF;
    IF v_found = 0 THEN
        SELECT max(nullif(notice, '')) INTO v_notice FROM {p}_broken WHERE name = a_name AND request = a_request;
    END IF;
    IF a_refused > 0 THEN
        -- The record of a claim that is refused has an empty notice. One of a break keeps its notice, and refuses claims, too.
        INSERT INTO {p}_broken (name, request, notice, expires_at) VALUES (a_name, a_request, '', v_now + a_refused)
        ON DUPLICATE KEY UPDATE expires_at = greatest(expires_at, v_now + a_refused);
    END IF;
    SELECT count(*) INTO v_expired FROM {p}_holds WHERE name = a_name AND expires_at <= v_now;
    IF v_expired > 0 THEN
        DELETE FROM {p}_holds WHERE name = a_name AND expires_at <= v_now;
    END IF;
    SELECT coalesce(bit_or({conflicts mode}), 0) INTO v_ahead FROM {p}_holds WHERE name = a_name;
    -- Once every mode that can wait conflicts with the entries ahead, no later waiter can be granted the lock.
    waiters: WHILE v_token IS NOT NULL AND v_granted < 256 AND v_ahead & {all} <> {all} DO
        SET v_next = NULL;
        SELECT request, seq, mode, owner, label, expires_at INTO v_next, v_seq, v_mode, v_owner, v_label, v_until
        FROM {p}_waiters WHERE name = a_name AND seq > v_seq ORDER BY seq LIMIT 1;
        IF v_next IS NULL THEN
            LEAVE waiters;
        END IF;
        IF v_until <= v_now THEN
            DELETE FROM {p}_waiters WHERE name = a_name AND request = v_next AND expires_at <= v_now;
            -- A keep-alive may have extended it since it was read.
            SELECT max(expires_at) INTO v_until FROM {p}_waiters WHERE name = a_name AND request = v_next;
            IF v_until IS NULL THEN
                ITERATE waiters;
            END IF;
        END IF;
        IF v_mode & v_ahead = 0 THEN
            DELETE FROM {p}_waiters WHERE name = a_name AND request = v_next;
            IF row_count() = 0 THEN
                -- A program of an earlier version, which locks no gate, has withdrawn it.
                ITERATE waiters;
            END IF;
            SET v_token = v_token + 1;
            SET v_granted = v_granted + 1;
            INSERT INTO {p}_holds (name, slot, request, token, mode, owner, label, since, expires_at)
            VALUES (a_name, if(v_mode = {exclusive}, '', v_next), v_next, v_token, v_mode, v_owner, v_label, v_now, v_until);
            -- A keep-alive may have extended the queue entry since it was read, and its client counts the lease from the time at
            -- which it sent that message: so the rest of the lease is counted from a later time.
            SET v_grants = concat(v_grants, hex(v_next), ' ', v_seq, ' ', v_token, ' ', greatest(v_until - {now}, 0), ',');
        END IF;
        SET v_ahead = v_ahead | {conflicts v_mode};
    END WHILE;
    IF v_granted > 0 THEN
        UPDATE {p}_gates SET token = v_token WHERE shard = v_shard;
    END IF;
    COMMIT;
    SELECT v_found, v_notice, v_grants, v_now;
END
