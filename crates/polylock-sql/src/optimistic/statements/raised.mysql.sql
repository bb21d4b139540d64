-- What a fence is at. Locking, so that it reads the row itself and not a snapshot of it, which may be older.
--
-- Inputs:    name.
-- Atomicity: one statement, in the transaction of `raise.mysql.sql`.
-- Clock:     none.
SELECT token FROM {table} WHERE name = ? FOR UPDATE
