-- Deletes rows that nobody uses: those that holders which died have left.
--
-- Inputs:    $1 of how many names at the most.
-- Atomicity: one statement. Rows in use are not even looked at, which the order of the join sees to.
-- Clock:     none.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
SET SESSION innodb_lock_wait_timeout = 1;
DELETE entry FROM
    (SELECT name FROM {p}_rows WHERE part = 0 LIMIT $1 FOR UPDATE SKIP LOCKED) AS unused
    STRAIGHT_JOIN {p}_rows AS entry ON entry.name = unused.name;
