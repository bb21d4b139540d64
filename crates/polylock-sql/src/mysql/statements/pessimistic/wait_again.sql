-- Prepares the transaction for another wait after the time limit of `wait.sql`. Fails if the server has ended the transaction with
-- that limit.
ROLLBACK TO SAVEPOINT polylock;
