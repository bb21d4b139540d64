-- The table of fences. The fill factor leaves room on each page, so that a fence is raised in place.
CREATE TABLE IF NOT EXISTS {table} (
    name text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL CHECK (token >= 0)
) WITH (fillfactor = 70)
