-- Gives this node's vote for a request with a number of its own, which becomes the fencing token if a majority agrees.
--
-- Inputs:    id, number, TTL in ms, how long numbers are kept in ms, owner, label, channel (empty: it
--            does not wait), how long it waits without asking again in ms.
-- Answers:   {1, token, 0, clock}: yes. {0, token, ms left, clock}: another request has the lock. {2, last, 0, clock}: the
--            number is not greater than `last`. {3, 0, 0, clock}: the number is far ahead of this node's clock.
local id, number, ttl, keep = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

if is_of(id) then
    -- Sent again, because the answer was lost; or by who else knows the request.
    redis.call('PEXPIRE', LOCK, ttl)
    accept(entry[1], keep)
    return {1, entry[1], 0, now}
end
if value then
    if ARGV[7] ~= '' then
        local before = redis.call('HGET', WAITING, ARGV[7])
        local since = before and cmsgpack.unpack(before)[1] or now
        local waits = tonumber(ARGV[8])
        redis.call('HSET', WAITING, ARGV[7], cmsgpack.pack({since, now + waits * 1000, ARGV[5], ARGV[6]}))
        if redis.call('PTTL', WAITING) < waits then
            redis.call('PEXPIRE', WAITING, waits)
        end
    end
    return {0, entry[1], redis.call('PTTL', LOCK), now}
end
if number <= last then
    return {2, last, 0, now}
end
-- One client with a wrong number would have everybody ask twice for as long as numbers are kept.
if number > now + 60000000 and number > last + 60000000 then
    return {3, 0, 0, now}
end
accept(number, keep)
redis.call('SET', LOCK, id .. cmsgpack.pack({number, now, ARGV[5], ARGV[6]}), 'PX', ttl)
if ARGV[7] ~= '' then
    redis.call('HDEL', WAITING, ARGV[7])
end
return {1, number, 0, now}
