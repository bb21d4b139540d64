-- The versions of the programs that may use the tables, of either strategy; run first.
--
-- Inputs:    none.
-- Atomicity: part of the transaction that creates the tables.
-- Clock:     none.
--
-- `{row}` is the version, `oldest` the oldest version with access to the tables. The first program inserts `oldest`
-- before it creates the other tables.
CREATE TABLE IF NOT EXISTS {p}_meta (key text PRIMARY KEY, value bigint NOT NULL);
INSERT INTO {p}_meta (key, value) VALUES ('oldest', {oldest}) ON CONFLICT DO NOTHING;
DO $guard$ BEGIN
    IF EXISTS (SELECT 1 FROM {p}_meta WHERE key OPERATOR(pg_catalog.=) 'oldest'::text AND value OPERATOR(pg_catalog.<) {oldest}::bigint) THEN
        RAISE EXCEPTION 'programs of versions before {oldest} may use these tables: stop them, and set oldest to {oldest} in {t}_meta';
    END IF;
END $guard$;
