-- Converts a hold to another mode. Returns the hold after it, and the reason for leaving it as it was: (token, mode, rest of the lease of
-- a holder in the way, 1 if that waits for this hold or 0, the clock). The first two are NULL if there is no live hold, or it is marked
-- as broken; so is the fourth if the call had expired.
--
-- Inputs:    a_slot is the slot of the mode in which the lock was claimed. a_from is the token of the hold; with another token it is left
--            as it is. a_mode is the new mode. a_in_way has the modes of other holders that are in the way; none for a downgrade.
--            a_held_conflicts has the conflicts of the present mode. a_waiting has the bits of both modes if the conversion waits,
--            otherwise 0. After a_expiry the client has abandoned the conversion, and another process may have adopted the hold, with
--            the same token: the call has no effect.
-- Atomicity: one transaction of its own, at READ COMMITTED, behind the gate, as a claim. It conflicts with renewals and breaks on the row.
-- Clock:     read once, after the gate was locked.
--
-- A hold that waits for a conversion has the bits of two modes, of which the greater one excludes all that the other does. So a hold
-- whose modes conflict with the present mode of this one waits for it.
CREATE PROCEDURE /*!80029 IF NOT EXISTS */ /*M! IF NOT EXISTS */ {p}_convert_4(
    a_name VARBINARY(255), a_request BINARY(16), a_slot VARBINARY(16), a_from BIGINT, a_mode BIGINT, a_in_way BIGINT,
    a_held_conflicts BIGINT, a_waiting BIGINT, a_expiry BIGINT)
MODIFIES SQL DATA
SQL SECURITY INVOKER
convert_hold: BEGIN
    DECLARE v_shard BIGINT DEFAULT crc32(a_name) & 1023;
    DECLARE v_now, v_new, v_token, v_mode, v_left, v_expired BIGINT;
    DECLARE v_deadlock, v_blocks, v_writes BIGINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        RESIGNAL;
    END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
    START TRANSACTION;
    UPDATE {p}_gates SET token = last_insert_id(token + 1) WHERE shard = v_shard;
    IF row_count() = 0 THEN
        -- As in `claim.sql`.
        INSERT IGNORE INTO {p}_gates (shard, token) VALUES (v_shard, {now});
        UPDATE {p}_gates SET token = last_insert_id(token + 1) WHERE shard = v_shard;
    END IF;
    SET v_new = last_insert_id();
    SET v_now = {now};
    IF v_now > a_expiry THEN
        ROLLBACK;
        SELECT NULL, NULL, NULL, NULL, v_now;
        LEAVE convert_hold;
    END IF;
    SELECT count(*) INTO v_expired FROM {p}_holds WHERE name = a_name AND expires_at <= v_now;
    IF v_expired > 0 THEN
        DELETE FROM {p}_holds WHERE name = a_name AND expires_at <= v_now;
    END IF;
    SELECT token, mode INTO v_token, v_mode FROM {p}_holds
    WHERE name = a_name AND slot = a_slot AND request = a_request AND notice IS NULL FOR UPDATE;
    IF v_token = a_from THEN
        -- The rest of the longest lease in the way; and of the others, how many this hold is in the way of, and how many of those in
        -- its way have two modes, because they wait for the same conversion.
        SELECT max(if(mode & a_in_way <> 0, expires_at, NULL)) - v_now, coalesce(sum(mode & a_held_conflicts <> 0), 0),
            coalesce(sum(mode & a_in_way <> 0 AND mode & (mode - 1) <> 0), 0)
            INTO v_left, v_blocks, v_writes
        FROM {p}_holds WHERE name = a_name AND request <> a_request;
        IF v_left IS NULL THEN
            SET v_token = v_new;
            SET v_mode = a_mode;
            UPDATE {p}_holds SET token = v_token, mode = v_mode WHERE name = a_name AND slot = a_slot AND request = a_request;
        ELSEIF v_blocks > 0 THEN
            SET v_deadlock = 1;
        ELSEIF a_waiting <> 0 AND v_writes = 0 THEN
            UPDATE {p}_holds SET mode = a_waiting WHERE name = a_name AND slot = a_slot AND request = a_request;
        END IF;
    END IF;
    COMMIT;
    SELECT v_token, v_mode, v_left, v_deadlock, v_now;
END
