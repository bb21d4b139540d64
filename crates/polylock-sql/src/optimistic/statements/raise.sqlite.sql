-- Raises a fence to a token and returns the greater of the two. From here on the transaction is the file's only writer until it
-- ends. With a snapshot that is older than another connection's last write the statement fails with SQLITE_BUSY_SNAPSHOT.
--
-- Inputs:    ?1 name, ?2 token.
-- Atomicity: one statement; it guards later statements only within a transaction.
-- Clock:     none.
INSERT INTO {table} AS fence (name, token) VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE SET token = max(fence.token, excluded.token)
RETURNING token
