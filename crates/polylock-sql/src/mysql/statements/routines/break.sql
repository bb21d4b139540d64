-- Takes a lock from all who hold it. Answers with who they were, live ones only: (name, token, mode, owner, label, age,
-- what was left of the lease).
--
-- Inputs:    none but the name.
-- Atomicity: takes all holds up to the last token that there is when it begins, in one transaction. A grant that comes
--            meanwhile has a greater one: it is neither told nor taken. The answer is sent before any row is locked, so a
--            client that has stopped keeps nobody out.
-- Clock:     read once.
CREATE PROCEDURE /*!80029 IF NOT EXISTS */ /*M! IF NOT EXISTS */ {p}_break_1(a_name VARBINARY(255))
MODIFIES SQL DATA
SQL SECURITY INVOKER
BEGIN
    DECLARE v_now BIGINT DEFAULT {now};
    DECLARE v_last BIGINT DEFAULT (SELECT max(token) FROM {p}_holds WHERE name = a_name);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        RESIGNAL;
    END;
    SELECT name, token, mode, owner, label, v_now - since, expires_at - v_now FROM {p}_holds
    WHERE name = a_name AND token <= v_last AND expires_at > v_now;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
    START TRANSACTION;
    DELETE FROM {p}_holds WHERE name = a_name AND token <= v_last;
    COMMIT;
END
