-- Deletes unused rows: those of holders that died, and notices that their holders did not read in time.
--
-- Inputs:    $1 maximum number of names.
-- Atomicity: two statements. The order of the join ensures that rows in use are not even read.
-- Clock:     read once.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
SET SESSION innodb_lock_wait_timeout = 1;
DELETE entry FROM
    (SELECT name FROM {p}_rows WHERE part = 0 LIMIT $1 FOR UPDATE SKIP LOCKED) AS unused
    STRAIGHT_JOIN {p}_rows AS entry ON entry.name = unused.name;
DELETE FROM {p}_sessions WHERE (notice IS NULL OR expires_at <= {now}) AND NOT ({live});
