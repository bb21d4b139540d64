-- The table of fences. Names are bytes, so that case, accents and trailing spaces count; InnoDB, because it needs
-- transactions.
CREATE TABLE IF NOT EXISTS {table} (
    name VARBINARY(255) NOT NULL PRIMARY KEY,
    token BIGINT NOT NULL CHECK (token >= 0)
) ENGINE = InnoDB
