-- `channel` and `ticket` are where a waiter's process wants to be woken when the lock was handed to it. NULL: it looks itself.
ALTER TABLE {p}_waiters ADD COLUMN channel BLOB;
ALTER TABLE {p}_waiters ADD COLUMN ticket INTEGER;
