-- Deletes the expired rows of a section of each table, so that names that are never claimed again leave no rows. Returns the last
-- names of the sections, empty at the end of a table: (of holds, of waiters, of broken holds).
--
-- Inputs:    names to continue from, length of a section.
-- Atomicity: each table in a transaction of its own, at READ COMMITTED, so that no gap between rows is locked. A hold that is
--            extended in the meantime is checked again and kept.
-- Clock:     read once.
CREATE PROCEDURE /*!80029 IF NOT EXISTS */ /*M! IF NOT EXISTS */ {p}_sweep_2(
    a_holds VARBINARY(255), a_waiters VARBINARY(255), a_broken VARBINARY(255), a_rows BIGINT)
MODIFIES SQL DATA
SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT {now};
    DECLARE v_expired BIGINT;
    DECLARE v_hold, v_waiter, v_broken VARBINARY(255);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        RESIGNAL;
    END;
    SELECT max(name) INTO v_hold FROM (
        SELECT name FROM {p}_holds WHERE name > a_holds ORDER BY name LIMIT a_rows) AS stretch;
    -- First read without locks: usually there are no expired rows.
    SELECT EXISTS (SELECT 1 FROM {p}_holds WHERE name > a_holds AND name <= v_hold AND expires_at <= v_now) INTO v_expired;
    IF v_expired > 0 THEN
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
        START TRANSACTION;
        DELETE FROM {p}_holds WHERE name > a_holds AND name <= v_hold AND expires_at <= v_now;
        COMMIT;
    END IF;
    SELECT max(name) INTO v_waiter FROM (
        SELECT name FROM {p}_waiters WHERE name > a_waiters ORDER BY name LIMIT a_rows) AS stretch;
    SELECT EXISTS (SELECT 1 FROM {p}_waiters WHERE name > a_waiters AND name <= v_waiter AND expires_at <= v_now) INTO v_expired;
    IF v_expired > 0 THEN
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
        START TRANSACTION;
        DELETE FROM {p}_waiters WHERE name > a_waiters AND name <= v_waiter AND expires_at <= v_now;
        COMMIT;
    END IF;
    SELECT max(name) INTO v_broken FROM (
        SELECT name FROM {p}_broken WHERE name > a_broken ORDER BY name LIMIT a_rows) AS stretch;
    SELECT EXISTS (SELECT 1 FROM {p}_broken WHERE name > a_broken AND name <= v_broken AND expires_at <= v_now) INTO v_expired;
    IF v_expired > 0 THEN
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
        START TRANSACTION;
        DELETE FROM {p}_broken WHERE name > a_broken AND name <= v_broken AND expires_at <= v_now;
        COMMIT;
    END IF;
    SELECT coalesce(v_hold, x''), coalesce(v_waiter, x''), coalesce(v_broken, x'');
END
