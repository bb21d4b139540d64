-- Extends a live hold to its TTL from now: (1), or (0) if there is none.
--
-- Inputs:    a_slot is empty for an exclusive hold; a_ttl in us.
-- Atomicity: each statement is its own transaction and locks one row, found by its whole key. A renewal meets a claim that
--            clears what has expired at the row: one of the two finds it gone or extended.
-- Clock:     read once, before the rows: a wait for them is part of the lease.
CREATE PROCEDURE /*!80029 IF NOT EXISTS */ /*M! IF NOT EXISTS */ {p}_renew_1(
    a_name VARBINARY(255), a_request BINARY(16), a_slot VARBINARY(16), a_ttl BIGINT)
MODIFIES SQL DATA
SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT {now};
    DECLARE v_renewed BIGINT;
    IF a_slot <> x'' THEN
        -- Before it: no claim may take the gate for a quiet one while the hold lasts.
        UPDATE {p}_gates SET busy_until = greatest(busy_until, v_now + a_ttl) WHERE shard = (crc32(a_name) & 1023);
    END IF;
    UPDATE {p}_holds SET expires_at = v_now + a_ttl
    WHERE name = a_name AND slot = a_slot AND request = a_request AND expires_at > v_now;
    SET v_renewed = row_count();
    IF v_renewed <= 0 THEN
        -- Whether a row counts that was found and had these very values already is a flag of the connection.
        SET v_renewed = (
            SELECT count(*) FROM {p}_holds
            WHERE name = a_name AND slot = a_slot AND request = a_request AND expires_at >= v_now + a_ttl);
    END IF;
    SELECT v_renewed;
END
