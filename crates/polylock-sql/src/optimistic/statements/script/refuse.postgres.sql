-- Raises 23PLF for a row with a smaller token than before. The trigger calls it, with the name of the column.
--
-- Inputs:    the rows of the trigger.
-- Atomicity: the statement of the caller.
-- Clock:     none.
CREATE OR REPLACE FUNCTION {refuse}() RETURNS pg_catalog.trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    RAISE EXCEPTION 'fencing token % is stale: token % was recorded before in a row of %',
        coalesce(to_jsonb(NEW) ->> TG_ARGV[0], 'NULL'), to_jsonb(OLD) ->> TG_ARGV[0], TG_TABLE_NAME
        USING ERRCODE = '23PLF', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, COLUMN = TG_ARGV[0],
            HINT = 'The lock was lost: stop this work, and acquire the lock again to redo it.';
END $body$
