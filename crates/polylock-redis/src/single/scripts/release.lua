-- Releases if held, withdraws if waiting, and hands the lock to those whose turn it is then.
--
-- Inputs:    id; and for how many us a claim of this request may still come, because the connection that it was sent on was
--            given up before it was answered (0: none can).
-- Answers:   1 if something was removed, else 0.
local id, late = ARGV[1], tonumber(ARGV[2])

local removed = redis.call('HDEL', HOLDS, id)
if removed == 0 then
    removed = leave(id)
end
if late > 0 then
    redis.call('ZREMRANGEBYSCORE', GONE, '-inf', text(now))
    redis.call('ZADD', GONE, text(now + late), id)
    keep(GONE, late)
end
if redis.call('EXISTS', QUEUE) == 1 then
    local _, conflicts = holds()
    settle(conflicts)
end
return removed
