-- Returns whether this server's votes count.
--
-- Inputs:    run, durable, observed (see `membership`).
-- Answers:   YES with the membership.
return {YES, 0, 0, now, membership(ARGV[1], ARGV[2], ARGV[3]), ''}
