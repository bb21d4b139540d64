-- Extends the vote for this number of a request. A server that has lost the vote gives it again if it is told to, unless it has
-- accepted a greater number meanwhile, the withdrawal or a break.
--
-- Inputs:    run, durable, observed (see `membership`); id, number (0: not known), TTL in ms, how long numbers are kept in ms,
--            owner, label, 1 to give the vote again, else 0.
-- Answers:   YES, number: extended. MARKED, number, ms left, notice: marked by a break, and not extended. NO, with the notice of a
--            break by force: there is no such vote.
local member = membership(ARGV[1], ARGV[2], ARGV[3])
local id, number, ttl, keep = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

if is_of(id) and (number == 0 or entry[1] == number) then
    if entry[5] then
        return {MARKED, entry[1], redis.call('PTTL', VOTE), now, member, entry[5]}
    end
    redis.call('PEXPIRE', VOTE, ttl)
    if last_is_valid and last < entry[1] then
        accept(entry[1], keep)
    else
        -- A server that is out of memory still does this.
        redis.call('PEXPIRE', LAST, keep)
    end
    return {YES, entry[1], ttl, now, member, ''}
end
-- A vote for a smaller number of the same request is withdrawn, and its withdrawal, which is still under way, names that number.
local may_replace = not value or is_of(id) and entry[1] < number
if ARGV[10] == '1' and number > 0 and may_replace and last_is_valid and last <= number then
    accept(number, keep)
    redis.call('SET', VOTE, id .. cmsgpack.pack({number, now, ARGV[8], ARGV[9]}), 'PX', ttl)
    return {YES, number, ttl, now, member, ''}
end
return {NO, 0, 0, now, member, notice_for(id)}
