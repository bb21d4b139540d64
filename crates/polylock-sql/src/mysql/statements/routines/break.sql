-- Breaks holds of a lock. The first row is (NULL, 1 if it was in time, ..., the clock instead of the rest of a lease). The broken
-- holds follow: (name, token, mode, owner, label, age, rest of the lease, notice).
--
-- Inputs:    a_tokens of the holds, separated by commas; others stay as they are. a_notice for the holders. With a_force the holds are removed; otherwise they are marked, and exclude other requests
--            until their release or the end of their lease. After a_expiry the client has abandoned the break, and the call has
--            no effect.
-- Atomicity: the holds are marked in one transaction and removed in another; no renewal extends them in between. Rows are sent while no row is locked, so
--            a client that has stopped blocks no other request.
-- Clock:     read once.
CREATE PROCEDURE /*!80029 IF NOT EXISTS */ /*M! IF NOT EXISTS */ {p}_break_3(
    a_name VARBINARY(255), a_tokens LONGTEXT, a_notice VARBINARY(1024), a_force BIGINT, a_expiry BIGINT)
MODIFIES SQL DATA
SQL SECURITY INVOKER
break_lock: BEGIN
    DECLARE v_now BIGINT DEFAULT {now};
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        RESIGNAL;
    END;
    SELECT NULL, v_now <= a_expiry, NULL, NULL, NULL, NULL, v_now, NULL;
    IF v_now > a_expiry THEN
        LEAVE break_lock;
    END IF;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
    START TRANSACTION;
    -- A second break does not replace the notice of the first one. From here on no renewal extends these holds.
    UPDATE {p}_holds SET notice = coalesce(notice, a_notice)
    WHERE name = a_name AND find_in_set(token, a_tokens) > 0 AND expires_at > v_now;
    COMMIT;
    SELECT name, token, mode, owner, label, v_now - greatest(since, 0), expires_at - v_now, notice FROM {p}_holds
    WHERE name = a_name AND find_in_set(token, a_tokens) > 0 AND expires_at > v_now;
    IF a_force <> 0 THEN
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
        START TRANSACTION;
        REPLACE INTO {p}_broken (name, request, notice, expires_at)
        SELECT name, request, if(notice = '', a_notice, notice), greatest(expires_at, coalesce(
            (SELECT refused.expires_at FROM {p}_broken AS refused
            WHERE refused.name = holds.name AND refused.request = holds.request), 0))
        FROM {p}_holds AS holds
        WHERE name = a_name AND find_in_set(token, a_tokens) > 0 AND notice IS NOT NULL FOR UPDATE;
        DELETE FROM {p}_holds WHERE name = a_name AND find_in_set(token, a_tokens) > 0;
        COMMIT;
    END IF;
END
