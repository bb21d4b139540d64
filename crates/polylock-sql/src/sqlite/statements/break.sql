-- Takes a lock from all who hold it. Answers with who they were: (request, whether its lease was live, name, token,
-- mode, owner, label, age, what was left of its lease).
--
-- Inputs:    ?1 name.
-- Atomicity: one statement, so one write transaction.
-- Clock:     read once, after the write lock was taken.
DELETE FROM {p}_holds WHERE name = ?1
RETURNING request, expires_at > {now}, name, token, mode, owner, label, {age}, {left};
