-- Extends the lock if it is the request's. A node that has lost it, by a restart, gets it again if it is told to, unless it has
-- accepted a greater number meanwhile, or the release.
--
-- Inputs:    id, number (0: not known), TTL in ms, how long numbers are kept in ms, owner, label, 0 if it may only extend.
-- Answers:   {1, token, 0, clock}: extended. {4, 0, 0, clock}: the lock is not the request's.
local id, number, ttl, keep = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

if is_of(id) then
    if number > entry[1] then
        -- A vote for a number before, whose release has not come yet: it must not take this one.
        entry[1] = number
        redis.call('SET', LOCK, id .. cmsgpack.pack(entry))
    end
    redis.call('PEXPIRE', LOCK, ttl)
    if last < entry[1] then
        accept(entry[1], keep)
    else
        -- Which a server that is out of memory still does.
        redis.call('PEXPIRE', LAST, keep)
    end
    return {1, entry[1], 0, now}
end
if not value and ARGV[7] ~= '0' and number > 0 and last <= number then
    accept(number, keep)
    redis.call('SET', LOCK, id .. cmsgpack.pack({number, now, ARGV[5], ARGV[6]}), 'PX', ttl)
    return {1, number, 0, now}
end
return {4, 0, 0, now}
