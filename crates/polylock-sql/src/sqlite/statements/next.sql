-- The waiters that can be granted the lock, in their order, as the table `next`; replaces {next} in `hand_over.sql`.
--
-- Inputs:    ?1 name.
-- Clock:     read once.
--
-- `ahead` has the bits of the modes that conflict with a waiter before this one. The walk ends when it has all bits: no waiter behind can
-- be granted the lock then.
WITH RECURSIVE walk (seq, mode, ahead) AS (
    SELECT * FROM (
        SELECT seq, mode, 0 FROM {p}_waiters WHERE name = ?1 AND seq > 0 AND expires_at > {now} ORDER BY seq LIMIT 1)
    UNION ALL
    SELECT behind.seq, behind.mode, walk.ahead | {conflicts walk.mode}
    FROM walk JOIN {p}_waiters AS behind ON behind.seq = (
        SELECT seq FROM {p}_waiters WHERE name = ?1 AND seq > walk.seq AND expires_at > {now} ORDER BY seq LIMIT 1)
    WHERE (walk.ahead | {conflicts walk.mode}) <> {all}
), next AS MATERIALIZED (
    SELECT waiter.* FROM walk JOIN {p}_waiters AS waiter ON waiter.seq = walk.seq
    WHERE walk.mode & walk.ahead = 0 AND NOT EXISTS (
        SELECT 1 FROM {p}_holds WHERE name = ?1 AND mode & {conflicts walk.mode} <> 0 AND expires_at > {now}))
