-- Raises a fence to a token and answers with the greater of the two. From here on the transaction is the file's only
-- writer until it ends. A snapshot that is older than the last write of another fails with SQLITE_BUSY_SNAPSHOT.
--
-- Inputs:    ?1 name, ?2 token.
-- Atomicity: one statement; must stand in a transaction to protect what follows.
-- Clock:     none.
INSERT INTO {table} AS fence (name, token) VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE SET token = max(fence.token, excluded.token)
RETURNING token
