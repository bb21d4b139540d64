-- Withdraws this server's vote for a request, for all numbers up to `number`. Proposals and renewals for these numbers that arrive
-- later are refused. A vote for a greater number stays.
--
-- Inputs:    id, number (0: any, which refuses nothing later), how long numbers are kept in ms, channel of a client that does not
--            wait any more (empty: none), name, the time when this call expires in us.
-- Returns:   YES: the vote was removed. NO, with the notice of a break by force: there was none. EXPIRED.
local id, number, keep = ARGV[1], tonumber(ARGV[2]), ARGV[3]

if now >= tonumber(ARGV[6]) then
    return {EXPIRED, 0, 0, now, '', ''}
end
local removed = is_of(id) and (number == 0 or entry[1] <= number)
if removed then
    number = math.max(number, entry[1])
    redis.call('DEL', VOTE)
end
if number > 0 then
    accept(number + 1, keep)
end
if ARGV[4] ~= '' then
    redis.call('HDEL', WAITING, ARGV[4])
end
if removed then
    notify(ARGV[5])
    return {YES, number, 0, now, '', ''}
end
return {NO, 0, 0, now, '', notice_for(id)}
