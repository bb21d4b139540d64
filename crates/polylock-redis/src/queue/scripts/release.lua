-- Releases if held, withdraws if waiting, and hands the lock to those whose turn it is then.
--
-- Inputs:    id; and when the last claim of this request expires, in us, of which a copy may still be delivered because the
--            connection that it was sent on was given up before it was answered (0: none can).
-- Answers:   1: an entry was removed. 0: there was none. A text: there was none, and this is the notice of a break by force.
local id, late = ARGV[1], tonumber(ARGV[2])

local removed = redis.call('HDEL', HOLDS, id)
if removed == 0 then
    removed = leave(id)
end
if late > now then
    redis.call('ZREMRANGEBYSCORE', RELEASED, '-inf', text(now))
    redis.call('ZADD', RELEASED, text(late), id)
    keep(RELEASED, late - now)
end
if redis.call('EXISTS', QUEUE) == 1 then
    local _, conflicts = holds()
    settle(conflicts)
end
return removed == 0 and notice_for(id) or removed
