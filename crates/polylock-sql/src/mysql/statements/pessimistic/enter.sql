-- Joins the users of a name, and takes its lock if it is free. Returns (1, identity) and, if it holds the lock, (2, 0, 0).
--
-- Inputs:    $1 name, $2 the time in ms that the transaction may be silent, which is rounded up to whole seconds, $3 and $4 the
--            identity of the session; {try} the clause that locks without waiting.
-- Atomicity: two transactions. The first makes the rows visible to all sessions. The second stays open: it is the hold, or the
--            queue entry of a waiter.
-- Clock:     the server's, which ends a connection that has been silent for too long.
--
-- Part 1 is inserted while part 0 is locked: a session that deletes both in between would leave a part 1 that nobody deletes.
--
-- Part 0 is locked first, which prevents the deletion of both rows: if part 1 is locked then, another session holds the lock. If
-- part 0 is missing, another session has deleted it after it was inserted; then the result is void, and the caller retries from
-- the start. An existing row is not inserted again, because the insert would wait for its holder. As long as the savepoint
-- exists, it is the same transaction.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
SET SESSION innodb_lock_wait_timeout = 1, {limit};
DO release_all_locks();
DO get_lock({session}, 0);
START TRANSACTION;
INSERT IGNORE INTO {p}_rows (name, part) SELECT $1, 0 FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM {p}_rows WHERE name = $1 AND part = 0);
SELECT 0, 0, 0 FROM {p}_rows WHERE name = $1 AND part = 0 LOCK IN SHARE MODE;
INSERT IGNORE INTO {p}_rows (name, part) SELECT $1, 1 FROM DUAL
WHERE EXISTS (SELECT 1 FROM {p}_rows WHERE name = $1 AND part = 0)
AND NOT EXISTS (SELECT 1 FROM {p}_rows WHERE name = $1 AND part = 1);
COMMIT;
START TRANSACTION;
SELECT 1, {identity} FROM {p}_rows WHERE name = $1 AND part = 0 AND is_used_lock({session}) = connection_id()
LOCK IN SHARE MODE;
SAVEPOINT polylock;
SELECT 2, 0, 0 FROM {p}_rows WHERE name = $1 AND part = 1 {try};
