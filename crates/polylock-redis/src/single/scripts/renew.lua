-- Extends a live hold; never makes or revives one.
--
-- Inputs:    id, TTL in us.
-- Answers:   1: extended. 0: there is no hold. A text: the notice of a break, which has marked the hold or removed it by force.
local packed = redis.call('HGET', HOLDS, ARGV[1])
local entry = packed and cmsgpack.unpack(packed)
if not entry or entry[5] <= now then
    return notice_for(ARGV[1]) or 0
end
if entry[8] then
    return entry[8]
end
entry[5] = now + tonumber(ARGV[2])
-- A server that is out of memory refuses to store more, but lets a script go on that has changed something: what is held
-- can be renewed.
redis.call('PEXPIRE', HOLDS, math.max(redis.call('PTTL', HOLDS), 1))
hold(ARGV[1], entry)
return 1
