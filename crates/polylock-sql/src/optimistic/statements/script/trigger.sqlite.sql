-- Refuses updates of a table with a smaller token than that of the row, without one, or with one that is not an integer: SQLite would
-- sort a text after all integers.
--
-- Inputs:    none.
-- Atomicity: one statement. The statements around it make it replace an earlier trigger of this name.
-- Clock:     none.
CREATE TRIGGER {trigger} BEFORE UPDATE ON {own_table} FOR EACH ROW
WHEN CASE typeof(NEW.{column})
    WHEN 'integer' THEN NEW.{column} < OLD.{column}
    WHEN 'null' THEN OLD.{column} IS NOT NULL
    ELSE 1
END
BEGIN
    SELECT RAISE(ABORT, 'the fencing token is stale: a greater one was recorded before in this row of {plain_table}');
END
