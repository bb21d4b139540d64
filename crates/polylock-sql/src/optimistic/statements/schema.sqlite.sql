-- The table of fences.
CREATE TABLE IF NOT EXISTS {table} (
    name TEXT NOT NULL PRIMARY KEY,
    token INTEGER NOT NULL CHECK (token >= 0)
) STRICT, WITHOUT ROWID
