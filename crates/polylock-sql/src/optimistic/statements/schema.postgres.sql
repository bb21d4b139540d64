-- The table of fences. Room on each page, so that a fence is raised in place.
CREATE TABLE IF NOT EXISTS {table} (
    name text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL CHECK (token >= 0)
) WITH (fillfactor = 70)
