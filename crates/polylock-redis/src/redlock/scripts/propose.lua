-- Gives this server's vote to a request for a number of its own, which becomes the fencing token if a majority does the same.
--
-- Inputs:    run, witness, observed (see `membership`); id, number, the greatest number of this request that is withdrawn, TTL in ms, how
--            long numbers are kept in ms, owner, label, channel (empty: the request does not wait), the time in ms for which it is recorded
--            as waiting.
-- Returns:   YES, number, ms left: the vote is for this number. HELD, number, ms left: another request has the vote. STALE, last: the
--            number is not greater than `last`, and this server has no vote, or the request would wait. TOO_FAR: the number is far ahead of this server's clock.
local member = membership(ARGV[1], ARGV[2], ARGV[3])
local id, number, withdrawn = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local ttl, keep = ARGV[7], ARGV[8]

if notice_of(id) then
    -- The request was released by another process, or its vote was removed by force, and this proposal is late.
    return {HELD, 0, 1000, now, member, ''}
end
if is_of(id) and entry[1] > withdrawn then
    -- The proposal was sent again, because the reply was lost, or by another client that has the id of the request. The vote is not
    -- withdrawn, so it stays, whatever the number of this proposal. A vote that was marked by a break is not extended.
    if not entry[5] then
        prolong(VOTE, ttl)
        accept(entry[1], keep)
    end
    return {YES, entry[1], redis.call('PTTL', VOTE), now, member, ''}
end
if value and not is_of(id) then
    if ARGV[11] ~= '' then
        if last_is_valid and number <= last then
            -- The request may have been withdrawn, and nobody waits. Otherwise it proposes again with a greater number.
            return {STALE, last, 0, now, member, ''}
        end
        local before = redis.call('HGET', WAITING, ARGV[11])
        local since = before and cmsgpack.unpack(before)[1] or now
        local waits = tonumber(ARGV[12])
        redis.call('HSET', WAITING, ARGV[11], cmsgpack.pack({since, now + waits * 1000, ARGV[9], ARGV[10]}))
        if redis.call('PTTL', WAITING) < waits then
            redis.call('PEXPIRE', WAITING, waits)
        end
    end
    return {HELD, entry[1], redis.call('PTTL', VOTE), now, member, ''}
end
if not last_is_valid then
    return redis.error_reply('POLYLOCKLAST ' .. LAST)
end
if number <= last then
    return {STALE, last, 0, now, member, ''}
end
-- One client with a wrong number would make all clients propose twice for as long as numbers are kept.
if number > GREATEST or number > now + 60000000 and number > last + 60000000 then
    return {TOO_FAR, 0, 0, now, member, ''}
end
-- A vote for a withdrawn number of the same request is replaced: its withdrawal, which is still in transit, does not remove the new vote.
redis.call('SET', LAST, ARGV[5], 'PX', keep)
redis.call('SET', VOTE, id .. cmsgpack.pack({number, now, ARGV[9], ARGV[10]}), 'PX', ttl)
if ARGV[11] ~= '' then
    redis.call('HDEL', WAITING, ARGV[11])
end
return {YES, number, tonumber(ttl), now, member, ''}
