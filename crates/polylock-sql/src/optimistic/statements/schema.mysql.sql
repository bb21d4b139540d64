-- The table of fences. Names are bytes, so that case, accents and trailing spaces are significant; the engine is InnoDB, because
-- fences need transactions.
CREATE TABLE IF NOT EXISTS {table} (
    name VARBINARY(255) NOT NULL PRIMARY KEY,
    token BIGINT NOT NULL CHECK (token >= 0)
) ENGINE = InnoDB
