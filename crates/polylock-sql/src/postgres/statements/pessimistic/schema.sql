-- The tables of polylock.strategy=pessimistic, version 2. Later versions: `upgrade/`.
--
-- Inputs:    none.
-- Atomicity: one transaction, behind a lock of its own: of two programs that start at once the second finds everything
--            done.
-- Clock:     read for the first token.
--
-- Each name in use has two rows, which hold nothing and are only there to be locked: of part 0, which all who use the
-- name lock FOR SHARE, and of part 1, which its holder locks. Not logged: when the server has crashed, nobody uses any.
-- The sequence is a token's source; it must never be reset.
CREATE UNLOGGED TABLE IF NOT EXISTS {p}_rows (name bytea, part smallint, PRIMARY KEY (name, part));
-- Who holds each lock, for people and for breaks; it grants nothing. A row counts as long as the session that it names lives, or,
-- with a `notice` of a break, until `expires_at`.
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
-- Tokens begin with the time, so that they go on growing if the tables are dropped and made anew: one is given less often than
-- once in a microsecond. Whatever other users have created in schemas of the search path, only the system's own is called.
SELECT pg_catalog.setval('{p}_tokens'::regclass, greatest(last_value, (pg_catalog.date_part('epoch'::text,
    pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000::double precision)::bigint), true)
FROM {p}_tokens WHERE NOT EXISTS (SELECT 1 FROM {p}_meta WHERE key OPERATOR(pg_catalog.=) '{row}'::text);
