-- Extends the lock if it is the request's. A node that has lost it, by a restart, gets it again, unless it has accepted a
-- greater number meanwhile, or the release.
--
-- Inputs:    id, number (0: not known), TTL in ms, how long numbers are kept in ms, owner, label.
-- Answers:   {1, token, 0, clock}: extended. {4, 0, 0, clock}: the lock is not the request's.
local id, number, ttl, keep = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

if is_of(id) then
    redis.call('PEXPIRE', LOCK, ttl)
    accept(entry[1], keep)
    return {1, entry[1], 0, now}
end
if not value and number > 0 and last <= number then
    accept(number, keep)
    redis.call('SET', LOCK, id .. cmsgpack.pack({number, now, ARGV[5], ARGV[6]}), 'PX', ttl)
    return {1, number, 0, now}
end
return {4, 0, 0, now}
