-- Releases the lock if it is held, withdraws the request if it is waiting, and hands the lock to the next waiters.
--
-- Inputs:    id; the expiry in us of the last claim of this request of which a copy may still be delivered, because the connection that it
--            was sent on was given up before the reply (0: none can). For a request that other processes may know: the time in us for
--            which a copy that they have sent may be delivered, and the time when this release expires in us, because one of them may have
--            renewed the hold since; otherwise 0 and 0.
-- Returns:   1: an entry was removed. 0: there was none. A text: there was none, and this is the notice of a break by force. {-1, clock in
--            us}: expired.
local id = ARGV[1]

if ARGV[4] ~= '0' and now >= tonumber(ARGV[4]) then
    return {-1, now}
end
local removed = redis.call('HDEL', HOLDS, id)
if removed == 0 then
    removed = leave(id)
end
refuse(id, ARGV[2], ARGV[3])
if redis.call('EXISTS', QUEUE) == 1 then
    local _, conflicts = holds()
    settle(conflicts)
end
return removed == 0 and notice_for(id) or removed
