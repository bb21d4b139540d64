-- Extends live holds that are not marked as broken, and live queue entries. Answers with a letter for each request, in their order:
-- H held, Q queued, B broken, G gone, C contested: another transaction has just changed the entry.
--
-- Inputs:    a_batch has for each request one byte with the length of its name, the name, its id, a byte that is 1 if it is
--            exclusive, its TTL and that of its queue entry in us, in eight bytes each.
-- Atomicity: one transaction, at READ COMMITTED, so that each statement sees what was committed before it. It locks single rows,
--            found by their whole keys. An entry meets a claim that clears what has expired, and a break, at its row: one of the two
--            finds the other's change. Where two transactions wait for each other, the server ends one of them with an error.
-- Clock:     read before each entry.
CREATE PROCEDURE /*!80029 IF NOT EXISTS */ /*M! IF NOT EXISTS */ {p}_keep_alive_2(a_batch LONGBLOB)
MODIFIES SQL DATA
SQL SECURITY INVOKER
BEGIN
    DECLARE v_at, v_length, v_end INT DEFAULT 1;
    DECLARE v_row VARBINARY(300);
    DECLARE v_name VARBINARY(255);
    DECLARE v_request BINARY(16);
    DECLARE v_slot VARBINARY(16);
    DECLARE v_ttl, v_place_ttl, v_now, v_extended BIGINT;
    DECLARE v_states LONGTEXT DEFAULT '';
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        RESIGNAL;
    END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
    START TRANSACTION;
    SET v_end = length(a_batch);
    entries: WHILE v_at <= v_end DO
        SET v_row = substring(a_batch, v_at, 289);
        SET v_length = ascii(v_row);
        SET v_name = substring(v_row, 2, v_length);
        SET v_request = substring(v_row, v_length + 2, 16);
        SET v_slot = if(ascii(substring(v_row, v_length + 18, 1)) = 1, '', v_request);
        SET v_ttl = conv(hex(substring(v_row, v_length + 19, 8)), 16, 10);
        SET v_place_ttl = conv(hex(substring(v_row, v_length + 27, 8)), 16, 10);
        SET v_at = v_at + v_length + 34;
        SET v_now = {now};

        UPDATE {p}_holds SET expires_at = v_now + v_ttl
        WHERE name = v_name AND slot = v_slot AND request = v_request AND expires_at > v_now AND notice IS NULL;
        SET v_extended = row_count();
        IF v_extended <= 0 THEN
            -- Whether a row counts that was found and had these very values already is a flag of the connection.
            SET v_extended = (
                SELECT count(*) FROM {p}_holds
                WHERE name = v_name AND slot = v_slot AND request = v_request AND expires_at >= v_now + v_ttl
                AND notice IS NULL);
        END IF;
        IF v_extended > 0 THEN
            SET v_states = concat(v_states, 'H');
            ITERATE entries;
        END IF;
        UPDATE {p}_waiters SET expires_at = v_now + v_place_ttl
        WHERE name = v_name AND request = v_request AND expires_at > v_now;
        SET v_extended = row_count();
        IF v_extended <= 0 THEN
            SET v_extended = (
                SELECT count(*) FROM {p}_waiters
                WHERE name = v_name AND request = v_request AND expires_at >= v_now + v_place_ttl);
        END IF;
        SET v_states = concat(v_states, CASE
            WHEN v_extended > 0 THEN 'Q'
            -- It has become a hold between the statements.
            WHEN EXISTS (SELECT 1 FROM {p}_holds WHERE name = v_name AND slot = v_slot AND request = v_request
                AND expires_at > v_now AND notice IS NULL) THEN 'C'
            WHEN EXISTS (SELECT 1 FROM {p}_holds WHERE name = v_name AND slot = v_slot AND request = v_request
                AND notice IS NOT NULL)
                OR EXISTS (SELECT 1 FROM {p}_broken WHERE name = v_name AND request = v_request) THEN 'B'
            ELSE 'G' END);
    END WHILE;
    COMMIT;
    SELECT v_states;
END
