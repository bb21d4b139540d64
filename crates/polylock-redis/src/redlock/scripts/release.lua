-- Takes back this node's vote, and sees to it that a proposal or a renewal of the request that comes later is refused.
--
-- Inputs:    id, the greatest number proposed for it (0: not known), how long numbers are kept in ms, channel of a client
--            that waits no more (empty: none), name.
-- Answers:   {1 if the lock was the request's, else 0, 0, 0, clock}.
local id, number, keep = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local removed = 0
-- A release that is late leaves a later proposal of the same request alone.
if is_of(id) and (number == 0 or entry[1] <= number) then
    number = math.max(number, entry[1])
    redis.call('DEL', LOCK)
    removed = 1
end
if number > 0 then
    accept(number + 1, keep)
end
if ARGV[4] ~= '' then
    redis.call('HDEL', WAITING, ARGV[4])
end
if removed == 1 then
    ring(ARGV[5])
end
return {removed, 0, 0, now}
