-- The tables of polylock.strategy=pessimistic, version 2. Later versions: `upgrade/`.
--
-- Inputs:    none.
-- Atomicity: one transaction, behind a lock of its own: of two programs that start at the same time, the second finds everything
--            done.
-- Clock:     read for the first token.
--
-- Each name in use has two rows without data, which exist only to be locked: part 0, which all users of the name lock FOR SHARE,
-- and part 1, which the holder locks. They are not logged: after a crash of the server no session uses them. Tokens are drawn
-- from the sequence, which must never be reset.
CREATE UNLOGGED TABLE IF NOT EXISTS {p}_rows (name bytea, part smallint, PRIMARY KEY (name, part));
-- The record of each hold, for inspection and breaks; it grants nothing. A row is valid while its session lives or, with the
-- `notice` of a break, until `expires_at`.
CREATE UNLOGGED TABLE IF NOT EXISTS {p}_sessions (
    name       bytea NOT NULL,
    request    bytea NOT NULL,
    session_1  bigint NOT NULL,
    session_2  bigint NOT NULL,
    token      bigint NOT NULL,
    mode       bigint NOT NULL,
    owner      text NOT NULL,
    label      text NOT NULL,
    since      bigint NOT NULL,
    ttl        bigint NOT NULL,
    notice     text,
    expires_at bigint,
    PRIMARY KEY (name, request)
);
CREATE SEQUENCE IF NOT EXISTS {p}_tokens AS bigint;
-- Tokens begin with the time, so that they continue to grow if the tables are dropped and created again: fewer than one token is
-- drawn per microsecond. Only objects of pg_catalog are called, whatever other users have created in schemas of the search path.
SELECT pg_catalog.setval('{p}_tokens'::regclass, greatest(last_value, (pg_catalog.date_part('epoch'::text,
    pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000::double precision)::bigint), true)
FROM {p}_tokens WHERE NOT EXISTS (SELECT 1 FROM {p}_meta WHERE key OPERATOR(pg_catalog.=) '{row}'::text);
