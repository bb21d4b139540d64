-- Raises a fence to a token and answers with the greater of the two. The row, new or old, stays locked for others until
-- the transaction ends. A snapshot that is older than the row's last change fails with 40001 instead.
--
-- Inputs:    $1 name, $2 token.
-- Atomicity: one statement; must stand in a transaction to protect what follows.
-- Clock:     none.
INSERT INTO {table} AS fence (name, token) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET token = greatest(fence.token, excluded.token)
RETURNING token
