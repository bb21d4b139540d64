-- Grants the lock if it is the request's turn; otherwise enqueues the request, or refreshes its queue entry.
--
-- Inputs:    id, mode, conflicts, TTL in us, lifetime of the queue entry in us (0: the request does not queue), channel, ticket, owner,
--            label, the time when this claim expires in us.
-- Returns:   {1, token, lease in us, 0, clock}: granted. {0, us until another claim is worthwhile, number of requests ahead or -1, queue
--            position, clock}: queued, or refused if it does not queue. {-1, 0, 0, 0, clock}: expired. The clock is in us.
--
-- A claim that is delivered late, after its client has given up the connection, has no effect: it has expired; or if it was given up only a
-- short time ago, its release has left a record.
local id, mode, conflicts = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local ttl, place_ttl = tonumber(ARGV[4]), tonumber(ARGV[5])

if now >= tonumber(ARGV[10]) then
    return {-1, 0, 0, 0, now}
end
if refused_until(id) > now or notice_for(id) then
    return {0, 1000, -1, 0, now}
end
local live, ahead, left = holds()
local mine = live[id]
if mine then
    -- A hold that was marked by a break, or is parked, is not extended.
    if not mine[8] then
        mine[5] = math.max(mine[5], now + ttl)
        hold(id, mine)
    end
    return {1, mine[1], mine[5] - now, 0, now}
end
if not last_drawn() then
    return no_greater_number()
end
local held = ahead
mine, ahead = settle(ahead, id, ttl)
if mine then
    return {1, mine[1], ttl, 0, now}
end
local place = redis.call('ZSCORE', QUEUE, id)
if not place and bit.band(mode, ahead) == 0 then
    local token = draw()
    if not token then
        return no_greater_number()
    end
    hold(id, {token, mode, conflicts, now, now + ttl, ARGV[8], ARGV[9]})
    return {1, token, ttl, 0, now}
end
if bit.band(mode, held) == 0 or not left then
    -- Waiters are ahead of the request; they are notified when their turn comes.
    left = math.max(place_ttl, 1000)
end
if place_ttl == 0 then
    return {0, left, -1, 0, now}
end

local since = now
if place then
    place = tonumber(place)
    local packed = redis.call('HGET', WAITERS, id)
    since = packed and cmsgpack.unpack(packed)[3] or now
else
    place = draw()
    if not place then
        return no_greater_number()
    end
    redis.call('ZADD', QUEUE, text(place), id)
end
local entry = {mode, conflicts, since, now + place_ttl, ARGV[6], tonumber(ARGV[7]), ARGV[8], ARGV[9]}
redis.call('HSET', WAITERS, id, cmsgpack.pack(entry))
keep(QUEUE, place_ttl)
keep(WAITERS, place_ttl)

-- An exclusive request waits for all requests ahead of it except holders of NL. For other modes, each entry would have to be compared.
local before = -1
if conflicts == EVERYBODY then
    before = redis.call('ZRANK', QUEUE, id)
    for _, entry in pairs(live) do
        if entry[3] ~= 0 then
            before = before + 1
        end
    end
end
return {0, left, before, place, now}
