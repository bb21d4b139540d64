-- Reads the value of a fence, with a locking read, which returns the row's last version and not that of an older snapshot.
--
-- Inputs:    name.
-- Atomicity: one statement, in the transaction of `raise.mysql.sql`.
-- Clock:     none.
SELECT token FROM {table} WHERE name = ? FOR UPDATE
