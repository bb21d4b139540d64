-- Sets the time limits of a wait.
--
-- Inputs:    $1 the time in ms that the transaction may be silent from then on.
-- Atomicity: one statement, as each message of a waiter: if `KILL QUERY` arrives between two statements of a message, the server
--            ends the message without a reply, and the client waits for one until the time limit of its operation.
-- Clock:     the server's.
--
-- A server does not notice during a wait that the client is gone, so each wait has a time limit.
SET SESSION innodb_lock_wait_timeout = {slice}, {limit};
