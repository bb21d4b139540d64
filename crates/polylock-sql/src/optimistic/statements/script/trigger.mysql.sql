-- Refuses updates of a table with a smaller token than that of the row, or without one. The row is locked, and is read in its last
-- version, before the comparison.
--
-- Inputs:    none.
-- Atomicity: one statement. If the trigger exists, MariaDB replaces it, and MySQL fails: its definition may be another one.
-- Clock:     none.
CREATE /*M! OR REPLACE */ TRIGGER {trigger} BEFORE UPDATE ON {table} FOR EACH ROW
BEGIN
    DECLARE v_text VARCHAR(128) CHARACTER SET utf8mb4;
    IF NEW.{column} < OLD.{column} OR NEW.{column} IS NULL AND OLD.{column} IS NOT NULL THEN
        SET v_text = left(concat('fencing token ', coalesce(CAST(NEW.{column} AS CHAR), 'NULL'), ' is stale: token ',
            OLD.{column}, ' was recorded before in a row of {plain_table}'), 128);
        SIGNAL SQLSTATE '23PLF' SET MESSAGE_TEXT = v_text;
    END IF;
END
