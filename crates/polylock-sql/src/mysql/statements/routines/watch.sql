-- Checks if waiters were granted the lock by another process, or if the requests that they wait for are gone, and waits for such
-- a change while the queue moves. Returns (the grants in the format of `release.sql`, the requests that are gone as hexadecimal
-- digits with a comma after each, 1 if the queue has moved between two checks, number of waiters ahead of the one that is next).
--
-- A grant is extended as a keep-alive would extend the waiter's queue entry: the waiter was alive when this call was sent. The
-- client sends no further call for a waiter that has its grant.
--
-- Inputs:    a_batch has for each waiter one byte with the length of its name, the name, its id, a byte that is 1 if it is
--            exclusive, the TTL of its queue entry in us and its queue position in eight bytes each, and the id of the request
--            that it waits for. a_pause is the time between two checks in us, for a waiter that is next; with one more ahead of
--            it, it is twice as long, and so on. After a_length in us the call returns in any case; with 0 it checks once.
-- Atomicity: each statement is its own transaction, and locks at most one row. A grant is returned after a later commit, so it is
--            on the disk.
-- Cost:      two statements for each waiter and check. At most eight of the waiters ahead are counted.
-- Clock:     read for each waiter and check. The waiting time is counted, not measured, so a step of the clock does not extend
--            it.
--
-- A token that is greater than the queue position belongs to a grant to this position: tokens and positions are drawn from one
-- counter.
CREATE PROCEDURE /*!80029 IF NOT EXISTS */ /*M! IF NOT EXISTS */ {p}_watch_4(a_batch LONGBLOB, a_pause BIGINT, a_length BIGINT)
MODIFIES SQL DATA
SQL SECURITY INVOKER
BEGIN
    DECLARE v_at, v_length, v_end INT DEFAULT 1;
    DECLARE v_row VARBINARY(350);
    DECLARE v_name VARBINARY(255);
    DECLARE v_request, v_watched BINARY(16);
    DECLARE v_slot VARBINARY(16);
    DECLARE v_place_ttl, v_place, v_now, v_token, v_ahead, v_nearest, v_before BIGINT;
    DECLARE v_moved, v_slept BIGINT DEFAULT 0;
    DECLARE v_waits, v_holds BIGINT;
    DECLARE v_grants, v_gone LONGTEXT DEFAULT '';
    SET v_end = length(a_batch);
    looks: LOOP
        SET v_nearest = 8;
        SET v_at = 1;
        WHILE v_at <= v_end DO
            SET v_row = substring(a_batch, v_at, 305);
            SET v_length = ascii(v_row);
            SET v_name = substring(v_row, 2, v_length);
            SET v_request = substring(v_row, v_length + 2, 16);
            SET v_slot = if(ascii(substring(v_row, v_length + 18, 1)) = 1, '', v_request);
            SET v_place_ttl = conv(hex(substring(v_row, v_length + 19, 8)), 16, 10);
            SET v_place = conv(hex(substring(v_row, v_length + 27, 8)), 16, 10);
            SET v_watched = substring(v_row, v_length + 35, 16);
            SET v_at = v_at + v_length + 50;
            SET v_now = {now};
            -- The waiters first, because a waiter becomes a hold.
            SELECT count(*) INTO v_waits FROM {p}_waiters WHERE name = v_name AND request = v_watched AND expires_at > v_now;
            IF v_waits = 0 THEN
                -- A holder that has downgraded its hold lets waiters in without leaving.
                SELECT EXISTS (SELECT 1 FROM {p}_holds
                        WHERE name = v_name AND slot IN ('', v_watched) AND request = v_watched AND expires_at > v_now)
                    AND NOT EXISTS (SELECT 1 FROM {p}_holds WHERE name = v_name AND slot = v_slot AND request = v_request)
                    INTO v_holds;
            END IF;
            IF v_waits > 0 THEN
                SELECT count(*) INTO v_ahead FROM (
                    SELECT 1 FROM {p}_waiters WHERE name = v_name AND seq < v_place LIMIT 8) AS ahead;
                SET v_nearest = least(v_nearest, v_ahead);
            ELSEIF v_holds > 0 THEN
                SET v_nearest = 0;
            ELSE
                SET v_token = NULL;
                SELECT token INTO v_token FROM {p}_holds
                WHERE name = v_name AND slot = v_slot AND request = v_request AND token > v_place AND notice IS NULL;
                IF v_token IS NOT NULL THEN
                    UPDATE {p}_holds SET expires_at = greatest(expires_at + 1, v_now + v_place_ttl)
                    WHERE name = v_name AND slot = v_slot AND request = v_request AND token = v_token AND expires_at > v_now
                    AND notice IS NULL;
                    IF row_count() = 0 THEN
                        SET v_token = NULL;
                    END IF;
                END IF;
                IF v_token IS NULL THEN
                    SET v_gone = concat(v_gone, hex(v_watched), ',');
                ELSE
                    SET v_grants = concat(v_grants, hex(v_request), ' ', v_place, ' ', v_token, ' ', v_place_ttl, ',');
                END IF;
            END IF;
        END WHILE;
        IF v_before <> v_nearest THEN
            SET v_moved = 1;
        END IF;
        SET v_before = v_nearest;
        SET v_slept = v_slept + a_pause * (v_nearest + 1);
        IF v_grants <> '' OR v_gone <> '' OR v_slept > a_length THEN
            LEAVE looks;
        END IF;
        DO sleep(a_pause * (v_nearest + 1) / 1000000);
    END LOOP;
    SELECT v_grants, v_gone, v_moved, v_nearest;
END
