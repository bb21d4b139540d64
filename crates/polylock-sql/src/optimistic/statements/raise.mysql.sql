-- Raises a fence to a token. The row, new or old, stays locked for others until the transaction ends. What it has become
-- is asked with `raised.mysql.sql`: the count of rows is the same for "raised", "equal" and "stale" with one setting of
-- the connection or another, and MySQL has no RETURNING. One assignment, so their order does not matter.
--
-- Inputs:    name, token, token.
-- Atomicity: one statement; must stand in a transaction to protect what follows.
-- Clock:     none.
INSERT INTO {table} (name, token) VALUES (?, ?) ON DUPLICATE KEY UPDATE token = greatest(token, ?)
