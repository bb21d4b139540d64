-- Raises a fence to a token. The row, new or old, stays locked until the transaction ends. Its new value is read with
-- `raised.mysql.sql`, because MySQL has no RETURNING and, depending on a setting of the connection, the count of rows does not
-- distinguish "raised", "equal" and "stale". The statement has one assignment, so the order of assignments does not matter.
--
-- Inputs:    name, token, token.
-- Atomicity: one statement; it guards later statements only within a transaction.
-- Clock:     none.
INSERT INTO {table} (name, token) VALUES (?, ?) ON DUPLICATE KEY UPDATE token = greatest(token, ?)
