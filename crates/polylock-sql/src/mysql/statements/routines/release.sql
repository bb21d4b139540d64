-- Releases if held, withdraws if waiting: (1 if there was an entry or 0, the notice if the hold was broken by force before).
--
-- Inputs:    a_slot of its mode.
-- Atomicity: each statement is its own transaction and locks one row, found by its whole key: nothing to wait for while it
--            keeps another. No gate: a claim meanwhile finds the request there or gone, and whoever waits for it is woken
--            afterwards.
-- Clock:     none.
CREATE PROCEDURE /*!80029 IF NOT EXISTS */ /*M! IF NOT EXISTS */ {p}_release_2(
    a_name VARBINARY(255), a_request BINARY(16), a_slot VARBINARY(16))
MODIFIES SQL DATA
SQL SECURITY INVOKER
BEGIN
    DECLARE v_found BIGINT;
    DECLARE v_notice VARBINARY(1024);
    DELETE FROM {p}_holds WHERE name = a_name AND slot = a_slot AND request = a_request;
    SET v_found = row_count();
    IF v_found = 0 THEN
        DELETE FROM {p}_waiters WHERE name = a_name AND request = a_request;
        SET v_found = row_count();
    END IF;
    IF v_found = 0 THEN
        SET v_notice = (SELECT notice FROM {p}_broken WHERE name = a_name AND request = a_request);
        IF v_notice IS NOT NULL THEN
            DELETE FROM {p}_broken WHERE name = a_name AND request = a_request;
        END IF;
    END IF;
    SELECT v_found, v_notice;
END
