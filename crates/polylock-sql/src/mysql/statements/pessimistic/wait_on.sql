-- Continues the wait of `wait.sql` after its time limit. Fails if the server has ended the transaction with that limit.
ROLLBACK TO SAVEPOINT polylock;
SELECT 2, 0, 0 FROM {p}_rows WHERE name = $1 AND part = 1 {strength};
