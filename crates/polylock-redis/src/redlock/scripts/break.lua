-- Breaks the vote for a number. Without force, it is marked with a notice: it keeps others out until it is withdrawn or expires, and is not
-- extended. With force, it is removed, and the notice is kept until it would have expired. Either way this server never gives a vote for this number again.
--
-- Inputs:    number of the holder, how long numbers are kept in ms, name, notice, '1' for force, channel
--            for break notices, the time when this call expires in us.
-- Returns:   YES, number, ms left, with the notice that counts: the vote was marked, now or before, or removed. NO: there is none. EXPIRED.
local number, keep, name, notice, force = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5] == '1'

if now >= tonumber(ARGV[7]) then
    return {EXPIRED, 0, 0, now, '', ''}
end
local answer = {NO, 0, 0, now, '', ''}
if value and entry[1] == number then
    local left = redis.call('PTTL', VOTE)
    if force then
        redis.call('DEL', VOTE)
        keep_notice(string.sub(value, 1, 16), notice, left)
    elseif entry[5] then
        notice = entry[5]
    else
        entry[5] = notice
        redis.call('SET', VOTE, string.sub(value, 1, 16) .. cmsgpack.pack(entry), 'KEEPTTL')
    end
    answer = {YES, entry[1], left, now, '', notice}
end
accept(number + 1, keep)
if answer[1] == YES then
    redis.call('PUBLISH', ARGV[6], name)
    if force then
        notify(name)
    end
end
return answer
