-- Deletes rows that nobody uses: those that holders which died have left, and notices that they have not fetched in time.
--
-- Inputs:    $1 of how many names at the most.
-- Atomicity: two statements. Rows in use are not even looked at, which the order of the join sees to.
-- Clock:     read once.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
SET SESSION innodb_lock_wait_timeout = 1;
DELETE entry FROM
    (SELECT name FROM {p}_rows WHERE part = 0 LIMIT $1 FOR UPDATE SKIP LOCKED) AS unused
    STRAIGHT_JOIN {p}_rows AS entry ON entry.name = unused.name;
DELETE FROM {p}_sessions WHERE (notice IS NULL OR expires_at <= {now}) AND NOT ({live});
