-- Takes the lock if it is the request's turn; else joins the queue, or keeps its place there.
--
-- Inputs:    id, mode, conflicts, TTL in us, how long its place lasts in us (0: it does not queue), channel, ticket, owner,
--            label.
-- Answers:   {1, token, lease in us}; or {0, us until a claim is worth while, those ahead or -1, place}.
--
-- A claim that comes after its own release, on a connection that was given up, finds that in GONE and does nothing.
local id, mode, conflicts = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local ttl, place_ttl = tonumber(ARGV[4]), tonumber(ARGV[5])

if redis.call('ZSCORE', GONE, id) then
    return {0, 1000, -1, 0}
end
local live, ahead, left = holds()
local mine = live[id]
if mine then
    mine[5] = now + ttl
    hold(id, mine)
    return {1, mine[1], ttl}
end
local held = ahead
mine, ahead = settle(ahead, id, ttl)
if mine then
    return {1, mine[1], ttl}
end
local place = redis.call('ZSCORE', QUEUE, id)
if not place and bit.band(mode, ahead) == 0 then
    local token = draw()
    hold(id, {token, mode, conflicts, now, now + ttl, ARGV[8], ARGV[9]})
    return {1, token, ttl}
end
if bit.band(mode, held) == 0 or not left then
    -- Waiters are before it; when their turn comes, they are told.
    left = math.max(place_ttl, 1000)
end
if place_ttl == 0 then
    return {0, left, -1, 0}
end

local since = now
if place then
    place = tonumber(place)
    local packed = redis.call('HGET', WAITERS, id)
    since = packed and cmsgpack.unpack(packed)[3] or now
else
    place = draw()
    redis.call('ZADD', QUEUE, text(place), id)
end
local entry = {mode, conflicts, since, now + place_ttl, ARGV[6], tonumber(ARGV[7]), ARGV[8], ARGV[9]}
redis.call('HSET', WAITERS, id, cmsgpack.pack(entry))
keep(QUEUE, place_ttl)
keep(WAITERS, place_ttl)

-- Who conflicts with everybody waits for all before it, but for holders of NL. For the others, it would have to be looked
-- up for each.
local before = -1
if conflicts == EVERYBODY then
    before = redis.call('ZRANK', QUEUE, id)
    for _, entry in pairs(live) do
        if entry[3] ~= 0 then
            before = before + 1
        end
    end
end
return {0, left, before, place}
