-- Parks a hold: it ends in a certain time, whether its lease ends earlier or later, and is not extended any more. Until then it
-- excludes other requests. Returns (1 if the hold is parked, now or before, or 0; the notice if it was broken; the clock), and NULL
-- instead of the number if the call had expired.
--
-- Inputs:    the slot of the mode in which the lock was claimed. a_token of the hold: a conversion has changed it, so a copy that
--            arrives later finds no such hold. a_left is the time until the end in us. For a_refused us from now a copy of a claim of
--            the request may arrive, also after that end, and takes nothing; 0 if none can. After a_expiry the client has abandoned
--            the call, and another process may have renewed the hold: the call has no effect.
-- Atomicity: one transaction of its own, at READ COMMITTED, which locks the row first.
-- Clock:     read once, after the row was locked.
--
-- A parked hold is marked as a broken one, with an empty notice.
CREATE PROCEDURE /*!80029 IF NOT EXISTS */ /*M! IF NOT EXISTS */ {p}_park_5(
    a_name VARBINARY(255), a_request BINARY(16), a_slot VARBINARY(16), a_token BIGINT, a_left BIGINT, a_refused BIGINT,
    a_expiry BIGINT)
MODIFIES SQL DATA
SQL SECURITY INVOKER
park: BEGIN
    DECLARE v_now, v_until, v_parked BIGINT;
    DECLARE v_notice VARBINARY(1024);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        RESIGNAL;
    END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
    START TRANSACTION;
    SELECT expires_at, notice INTO v_until, v_notice FROM {p}_holds
    WHERE name = a_name AND slot = a_slot AND request = a_request AND token = a_token FOR UPDATE;
    SET v_now = {now};
    IF v_now > a_expiry THEN
        ROLLBACK;
        SELECT NULL, NULL, v_now;
        LEAVE park;
    END IF;
    IF v_until IS NULL OR v_until <= v_now THEN
        SET v_parked = 0;
        SELECT max(nullif(notice, '')) INTO v_notice FROM {p}_broken WHERE name = a_name AND request = a_request;
    ELSEIF v_notice IS NULL THEN
        UPDATE {p}_holds SET expires_at = v_now + a_left, notice = ''
        WHERE name = a_name AND slot = a_slot AND request = a_request;
        SET v_parked = 1;
    ELSE
        SET v_parked = if(v_notice = '', 1, 0);
    END IF;
    IF v_parked = 1 AND a_refused > 0 THEN
        INSERT INTO {p}_broken (name, request, notice, expires_at) VALUES (a_name, a_request, '', v_now + a_refused)
        ON DUPLICATE KEY UPDATE expires_at = greatest(expires_at, v_now + a_refused);
    END IF;
    COMMIT;
    SELECT v_parked, v_notice, v_now;
END
