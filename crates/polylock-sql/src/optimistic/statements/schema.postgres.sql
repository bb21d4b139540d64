-- The table of fences. The fill factor leaves room on each page, so that a fence is raised in place. Types and operators are those of
-- pg_catalog, whatever other users have created in schemas of the search path.
CREATE TABLE IF NOT EXISTS {table} (
    name pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    token bigint NOT NULL CHECK (token OPERATOR(pg_catalog.>=) 0)
) WITH (fillfactor = 70)
