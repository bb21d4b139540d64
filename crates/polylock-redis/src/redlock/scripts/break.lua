-- Breaks the vote that holds a lock. Without force, the vote for this number is marked with a notice: it keeps others out until it is
-- withdrawn or expires, and is not extended. With force, the vote is removed, whatever its number, and the notice is kept until it would
-- have expired. Either way this server never gives a vote for this number again.
--
-- Inputs:    number of the holder (0: none, with force only), how long numbers are kept in ms, name, notice, '1' for force, channel
--            for break notices.
-- Returns:   YES, number, ms left, with the notice that counts: the vote was marked, now or before, or removed. NO: there is none.
local number, keep, name, notice, force = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5] == '1'

local answer = {NO, 0, 0, now, '', ''}
if value and (force or entry[1] == number) then
    local left = redis.call('PTTL', VOTE)
    number = math.max(number, entry[1])
    if force then
        redis.call('DEL', VOTE)
        local flat = redis.call('HGETALL', NOTICES)
        for i = 1, #flat, 2 do
            if cmsgpack.unpack(flat[i + 1])[2] <= now then
                redis.call('HDEL', NOTICES, flat[i])
            end
        end
        redis.call('HSET', NOTICES, string.sub(value, 1, 16), cmsgpack.pack({notice, now + left * 1000}))
        if redis.call('PTTL', NOTICES) < left then
            redis.call('PEXPIRE', NOTICES, left)
        end
    elseif entry[5] then
        notice = entry[5]
    else
        entry[5] = notice
        redis.call('SET', VOTE, string.sub(value, 1, 16) .. cmsgpack.pack(entry), 'KEEPTTL')
    end
    answer = {YES, entry[1], left, now, '', notice}
end
if number > 0 then
    accept(number + 1, keep)
end
if answer[1] == YES then
    redis.call('PUBLISH', ARGV[6], name)
    if force then
        notify(name)
    end
end
return answer
