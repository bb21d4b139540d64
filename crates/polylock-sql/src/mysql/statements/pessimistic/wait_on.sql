-- As `wait.sql`, when a slice of time is over. An error if the server has ended the transaction with it.
ROLLBACK TO SAVEPOINT polylock;
SELECT 2, 0, 0 FROM {p}_rows WHERE name = $1 AND part = 1 {strength};
