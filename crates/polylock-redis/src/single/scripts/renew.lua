-- Extends a live hold; never makes or revives one.
--
-- Inputs:    id, TTL in us.
-- Answers:   1, or 0 if there is none.
local packed = redis.call('HGET', HOLDS, ARGV[1])
if not packed then
    return 0
end
local entry = cmsgpack.unpack(packed)
if entry[5] <= now then
    return 0
end
entry[5] = now + tonumber(ARGV[2])
-- A server that is out of memory refuses to store more, but lets a script go on that has changed something: what is held
-- can be renewed.
redis.call('PEXPIRE', HOLDS, math.max(redis.call('PTTL', HOLDS), 1))
hold(ARGV[1], entry)
return 1
