-- Continues the wait of `wait.sql` after its time limit.
ROLLBACK TO SAVEPOINT slice;
SELECT 2::bigint, 0::bigint, 0::bigint FROM {p}_rows WHERE name = $1 AND part = 1 {strength};
