-- `channel` is the socket name of a waiter's process and `ticket` the waiter's number there, for the wake-up when the lock is handed to it.
-- NULL: the process polls.
ALTER TABLE {p}_waiters ADD COLUMN channel BLOB;
ALTER TABLE {p}_waiters ADD COLUMN ticket INTEGER;
