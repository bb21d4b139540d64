-- Returns the membership of this server: its votes count, or do not count yet.
--
-- Inputs:    run, witness, observed (see `membership`).
-- Returns:   YES with the membership.
return {YES, 0, 0, now, membership(ARGV[1], ARGV[2], ARGV[3]), ''}
