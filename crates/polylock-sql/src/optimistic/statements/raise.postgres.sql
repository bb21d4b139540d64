-- Raises a fence to a token and returns the greater of the two. The row, new or old, stays locked until the transaction ends.
-- With a snapshot that is older than the row's last change the statement fails with 40001 instead.
--
-- Inputs:    $1 name, $2 token.
-- Atomicity: one statement; it guards later statements only within a transaction.
-- Clock:     none.
INSERT INTO {table} AS fence (name, token) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET token = greatest(fence.token, excluded.token)
RETURNING token
