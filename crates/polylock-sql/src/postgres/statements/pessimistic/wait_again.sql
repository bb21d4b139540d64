-- Prepares the transaction for another wait after the time limit of `wait.sql`.
ROLLBACK TO SAVEPOINT slice;
