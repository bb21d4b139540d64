-- Refuses updates of a table with a smaller token than that of the row, or without one. The row is locked, and is read in its last
-- version, before the comparison.
--
-- Inputs:    none.
-- Atomicity: one statement, which replaces the trigger if it exists. The operators are those of pg_catalog, whatever other users have
--            created in schemas of the search path.
-- Clock:     none.
DO $body$
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_trigger WHERE tgrelid OPERATOR(pg_catalog.=) '{table}'::pg_catalog.regclass
        AND tgname OPERATOR(pg_catalog.=) '{plain_fence}'::pg_catalog.name
    ) THEN
        DROP TRIGGER "{plain_fence}" ON {table};
    END IF;
    CREATE TRIGGER "{plain_fence}" BEFORE UPDATE ON {table} FOR EACH ROW
    WHEN (NEW.{column} OPERATOR(pg_catalog.<) OLD.{column} OR NEW.{column} IS NULL AND OLD.{column} IS NOT NULL)
    EXECUTE FUNCTION {refuse}('{plain_column}');
END $body$
