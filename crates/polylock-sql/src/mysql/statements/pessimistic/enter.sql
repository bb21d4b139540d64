-- Joins those who use a name, and takes its lock if it is free. Answers with (1, identity) and, if it holds the lock,
-- (2, 0, 0).
--
-- Inputs:    $1 name, $2 for how many ms the transaction may be silent, which is rounded up to whole seconds, $3 and $4 the
--            identity of the session; {try} how to lock without waiting.
-- Atomicity: two transactions. The first makes the rows for everybody to see. The second stays open: it is the hold, or
--            the place of one who waits.
-- Clock:     the server's, which ends a connection that has been silent for too long.
--
-- Part 0 first: whoever has it keeps both rows from being deleted, so if part 1 is not to be had, somebody holds it. If
-- part 0 is not there, somebody has deleted it since it was made; then nothing counts, and all is tried again.
-- A row that is there is not inserted again: that would wait for its holder. As long as there is the savepoint, it is the
-- same transaction.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
SET SESSION innodb_lock_wait_timeout = 1, {limit};
DO release_all_locks();
DO get_lock({session}, 0);
START TRANSACTION;
INSERT IGNORE INTO {p}_rows (name, part) SELECT $1, 0 FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM {p}_rows WHERE name = $1 AND part = 0);
INSERT IGNORE INTO {p}_rows (name, part) SELECT $1, 1 FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM {p}_rows WHERE name = $1 AND part = 1);
COMMIT;
START TRANSACTION;
SELECT 1, {identity} FROM {p}_rows WHERE name = $1 AND part = 0 AND is_used_lock({session}) = connection_id()
LOCK IN SHARE MODE;
SAVEPOINT polylock;
SELECT 2, 0, 0 FROM {p}_rows WHERE name = $1 AND part = 1 {try};
