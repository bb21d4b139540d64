-- Extends a live hold to its TTL from now: (1, NULL). Otherwise (0, notice): the hold was broken, or (0, NULL): there is none.
--
-- Inputs:    a_slot is empty for an exclusive hold; a_ttl in us.
-- Atomicity: each statement is its own transaction and locks one row, found by its whole key. A renewal meets a claim that
--            clears what has expired, and a break, at the row: one of the two finds the other's change.
-- Clock:     read once, before the row: a wait for it is part of the lease.
CREATE PROCEDURE /*!80029 IF NOT EXISTS */ /*M! IF NOT EXISTS */ {p}_renew_2(
    a_name VARBINARY(255), a_request BINARY(16), a_slot VARBINARY(16), a_ttl BIGINT)
MODIFIES SQL DATA
SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT {now};
    DECLARE v_renewed BIGINT;
    DECLARE v_notice VARBINARY(1024);
    UPDATE {p}_holds SET expires_at = v_now + a_ttl
    WHERE name = a_name AND slot = a_slot AND request = a_request AND expires_at > v_now AND notice IS NULL;
    SET v_renewed = row_count();
    IF v_renewed <= 0 THEN
        -- Whether a row counts that was found and had these very values already is a flag of the connection.
        SET v_renewed = (
            SELECT count(*) FROM {p}_holds
            WHERE name = a_name AND slot = a_slot AND request = a_request AND expires_at >= v_now + a_ttl
            AND notice IS NULL);
    END IF;
    IF v_renewed = 0 THEN
        SET v_notice = coalesce(
            (SELECT notice FROM {p}_holds WHERE name = a_name AND slot = a_slot AND request = a_request),
            (SELECT notice FROM {p}_broken WHERE name = a_name AND request = a_request));
    END IF;
    SELECT v_renewed, v_notice;
END
