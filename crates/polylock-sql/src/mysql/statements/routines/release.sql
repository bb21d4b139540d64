-- Releases if held, withdraws if waiting; nothing if absent. No answer.
--
-- Inputs:    a_slot of its mode.
-- Atomicity: each statement is its own transaction and locks one row, found by its whole key: nothing to wait for while it
--            keeps another. No gate: who claims meanwhile finds the request there or gone, and whoever waits for it is woken
--            afterwards.
-- Clock:     none.
CREATE PROCEDURE /*!80029 IF NOT EXISTS */ /*M! IF NOT EXISTS */ {p}_release_1(
    a_name VARBINARY(255), a_request BINARY(16), a_slot VARBINARY(16))
MODIFIES SQL DATA
SQL SECURITY INVOKER
BEGIN
    DELETE FROM {p}_holds WHERE name = a_name AND slot = a_slot AND request = a_request;
    IF row_count() = 0 THEN
        DELETE FROM {p}_waiters WHERE name = a_name AND request = a_request;
    END IF;
END
