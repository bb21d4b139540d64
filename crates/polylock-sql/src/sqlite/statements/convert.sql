-- Converts a hold to another mode. Returns the hold after it, and the reason for leaving it as it was: (token, mode, remaining lease of a
-- holder in the way, 1 if that waits for this hold or 0); no row if there is no live hold, or it is marked as broken.
--
-- Inputs:    ?1 name, ?2 request, ?3 the token of the hold (with another token it is left as it is), ?4 the new mode bit, ?5 the modes of
--            other holders that are in the way (none for a downgrade), ?6 the conflict mask of the present mode, ?7 the bits of both modes
--            if the conversion waits, otherwise 0.
-- Atomicity: one write transaction.
-- Clock:     read by each statement, after the write lock was taken.
--
-- A hold that waits for a conversion has the bits of two modes, of which the greater one excludes all that the other does. So a hold whose
-- modes conflict with the present mode of this one waits for it. A token that is drawn and not used leaves a gap.
BEGIN IMMEDIATE;
DELETE FROM {p}_holds WHERE name = ?1 AND expires_at <= {now};
UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = '{p}_holds';
UPDATE {p}_holds SET token = (SELECT seq FROM sqlite_sequence WHERE name = '{p}_holds'), mode = ?4
WHERE name = ?1 AND request = ?2 AND token = ?3 AND notice IS NULL
AND NOT EXISTS (SELECT 1 FROM {p}_holds AS other WHERE other.name = ?1 AND other.request <> ?2 AND other.mode & ?5 <> 0);
UPDATE {p}_holds SET mode = ?7
WHERE ?7 <> 0 AND name = ?1 AND request = ?2 AND token = ?3 AND notice IS NULL
AND NOT EXISTS (
    SELECT 1 FROM {p}_holds AS other WHERE other.name = ?1 AND other.request <> ?2
    AND (other.mode & ?6 <> 0 OR (other.mode & ?5 <> 0 AND other.mode & (other.mode - 1) <> 0)));
SELECT token, mode, (
    SELECT max(expires_at) - {now} FROM {p}_holds WHERE name = ?1 AND request <> ?2 AND mode & ?5 <> 0
), EXISTS (
    SELECT 1 FROM {p}_holds WHERE name = ?1 AND request <> ?2 AND mode & ?6 <> 0
) FROM {p}_holds WHERE name = ?1 AND request = ?2 AND notice IS NULL AND expires_at > {now};
COMMIT;
