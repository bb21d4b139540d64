-- `process` identifies the process of a hold or of a queue entry: an entry is deleted when its process has ended. NULL: it lasts until its
-- lease has expired.
ALTER TABLE {p}_holds ADD COLUMN process BLOB;
ALTER TABLE {p}_waiters ADD COLUMN process BLOB;
