-- Breaks holds of a lock cooperatively: marks them; they keep others out until their release or the end of their leases. A mark keeps its
-- first notice. Returns the holds: (name, token, mode, owner, label, age, remaining lease, notice).
--
-- Inputs:    ?1 name, ?2 notice, ?3 the tokens of the holds as a JSON array; others stay as they are.
-- Atomicity: one statement, so one write transaction.
-- Clock:     read once, after the write lock was taken.
UPDATE {p}_holds SET notice = coalesce(notice, ?2) WHERE name = ?1 AND token IN (SELECT value FROM json_each(?3)) AND expires_at > {now}
RETURNING name, token, mode, {owner}, {label}, {age}, {left}, {notice};
