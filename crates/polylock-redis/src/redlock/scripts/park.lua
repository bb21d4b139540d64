-- Parks the vote for a request: it ends in a certain time, whether it would expire earlier or later, and is not extended any more. Until
-- then it keeps others out. This server never gives a vote for this number again: when the parked votes have ended, a renewal by another
-- process that has not heard of it would bring the hold back.
--
-- Inputs:    id, number, the time until the end in ms, how long numbers are kept in ms, the time when this call expires in us.
-- Returns:   YES: the vote is parked, now or before. MARKED, with the notice of a break. NO, with the notice of a break by force or '': there
--            is no vote for this number. EXPIRED.
local id, number, left = ARGV[1], tonumber(ARGV[2]), ARGV[3]

if now >= tonumber(ARGV[5]) then
    return {EXPIRED, 0, 0, now, '', ''}
end
accept(number + 1, ARGV[4])
if not is_of(id) or entry[1] ~= number then
    return {NO, 0, 0, now, '', notice_for(id)}
end
if not entry[5] then
    entry[5] = ''
    redis.call('SET', VOTE, id .. cmsgpack.pack(entry), 'PX', left)
end
return {entry[5] == '' and YES or MARKED, 0, 0, now, '', entry[5]}
