-- Releases the lock if it is held, withdraws the request if it is waiting, and hands the lock to the next waiters.
--
-- Inputs:    id; the expiry in us of the last claim of this request of which a copy may still be delivered, because the connection that it
--            was sent on was given up before the reply (0: none can).
-- Returns:   1: an entry was removed. 0: there was none. A text: there was none, and this is the notice of a break by force.
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
