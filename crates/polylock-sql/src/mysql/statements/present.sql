-- Which requests hold or wait still, of those that are asked for, and perhaps others of the same names.
--
-- Inputs:    $1 for each of them (name, request), where it is if it waits or shares, and (name, empty), where it is if it
--            holds alone: keys of both tables, so one statement looks up any number of them.
-- Atomicity: reads only; one statement, so one snapshot.
-- Clock:     read once.
SELECT request FROM {p}_holds WHERE (name, slot) IN ($1) AND expires_at > {now}
UNION ALL
SELECT request FROM {p}_waiters WHERE (name, request) IN ($1) AND expires_at > {now};
