-- Extends live holds that are not marked as broken, and live queue entries: to a maximum, which never shortens a lease. Returns a text
-- for each request, in their order, separated by commas: H, rest of the lease, token and modes, separated by spaces, for a hold; Q
-- queued, B broken, G gone or parked, C contested (another transaction has just changed the entry).
--
-- Inputs:    a_batch has for each request one byte with the length of its name, the name, its id, a byte that is 1 if it is
--            exclusive, its TTL and that of its queue entry in us, in eight bytes each.
-- Atomicity: one transaction, at READ COMMITTED, so that each statement sees what was committed before it. It locks single rows,
--            found by their complete keys. A claim that deletes expired entries, or a break, conflicts with it on the entry's
--            row, so one of the two sees the other's change. In a deadlock the server ends one of the transactions with an error.
--            Reads are of the form SELECT ... INTO, in all routines, because those in SET and IF lock what they read.
-- Clock:     read before each entry.
CREATE PROCEDURE /*!80029 IF NOT EXISTS */ /*M! IF NOT EXISTS */ {p}_keep_alive_4(a_batch LONGBLOB)
MODIFIES SQL DATA
SQL SECURITY INVOKER
BEGIN
    DECLARE v_at, v_length, v_end INT DEFAULT 1;
    DECLARE v_row VARBINARY(300);
    DECLARE v_name VARBINARY(255);
    DECLARE v_request BINARY(16);
    DECLARE v_slot VARBINARY(16);
    DECLARE v_ttl, v_place_ttl, v_now, v_found, v_extended BIGINT;
    DECLARE v_terms VARCHAR(80);
    DECLARE v_state CHAR(1);
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

        SET v_extended = 0;
        -- First read without a lock: all exclusive requests of a name share the key of one row, and a release that has locked
        -- this row may wait for an entry of this batch.
        SELECT count(*) INTO v_found FROM {p}_holds WHERE name = v_name AND slot = v_slot AND request = v_request;
        IF v_found > 0 THEN
            UPDATE {p}_holds SET expires_at = greatest(expires_at, v_now + v_ttl)
            WHERE name = v_name AND slot = v_slot AND request = v_request AND expires_at > v_now AND notice IS NULL;
            SET v_extended = row_count();
            IF v_extended <= 0 THEN
                -- The connection's flags decide if row_count() includes a row that was found and already had these values.
                SELECT count(*) INTO v_extended FROM {p}_holds
                WHERE name = v_name AND slot = v_slot AND request = v_request AND expires_at >= v_now + v_ttl
                AND notice IS NULL;
            END IF;
        END IF;
        IF v_extended > 0 THEN
            -- NULL if the row that was found with these values, and so was not locked, has changed since.
            SELECT max(concat('H ', expires_at - v_now, ' ', token, ' ', mode)) INTO v_terms FROM {p}_holds
            WHERE name = v_name AND slot = v_slot AND request = v_request AND expires_at > v_now AND notice IS NULL;
            SET v_states = concat(v_states, coalesce(v_terms, 'C'), ',');
            ITERATE entries;
        END IF;
        UPDATE {p}_waiters SET expires_at = greatest(expires_at, v_now + v_place_ttl)
        WHERE name = v_name AND request = v_request AND expires_at > v_now;
        SET v_extended = row_count();
        IF v_extended <= 0 THEN
            SELECT count(*) INTO v_extended FROM {p}_waiters
            WHERE name = v_name AND request = v_request AND expires_at >= v_now + v_place_ttl;
        END IF;
        SELECT CASE
            WHEN v_extended > 0 THEN 'Q'
            -- It has become a hold between the statements.
            WHEN EXISTS (SELECT 1 FROM {p}_holds WHERE name = v_name AND slot = v_slot AND request = v_request
                AND expires_at > v_now AND notice IS NULL) THEN 'C'
            WHEN EXISTS (SELECT 1 FROM {p}_holds WHERE name = v_name AND slot = v_slot AND request = v_request
                AND notice <> '')
                OR EXISTS (SELECT 1 FROM {p}_broken WHERE name = v_name AND request = v_request AND notice <> '') THEN 'B'
            ELSE 'G' END INTO v_state;
        SET v_states = concat(v_states, v_state, ',');
    END WHILE;
    COMMIT;
    SELECT v_states;
END
