-- Extends the votes for numbers of requests to a TTL: a maximum, which never shortens one. If requested, a server that has lost a vote gives it again, unless it has accepted a greater
-- number in the meantime, by the withdrawal or a break, or refuses the request: another process has released it, and its withdrawal
-- names no number (`refuse.lua`).
--
-- Inputs:    KEYS: for each request the vote for its lock, the last number, the notices. ARGV: run, witness, observed (see `membership`);
--            how long numbers are kept in ms, 1 to give votes again, else 0; then for each request id, number (0: not known), TTL in ms,
--            owner, label. Owner and label are for votes that are given again.
-- Returns:   {YES, 0, 0, clock, membership, outcomes}, with two outcomes for each request, a word and a text. YES, with the number of the
--            vote and the time left in ms, separated by a space: extended. MARKED: marked by a break with this notice, or parked if it is '', and not extended. NO, with the notice of a break by force or '': there is no such vote.
local member = membership(ARGV[1], ARGV[2], ARGV[3])
local keep, restores = ARGV[4], ARGV[5] == '1'

local function extend(id, number, ttl, owner, label)
    if is_of(id) and (number == 0 or entry[1] == number) then
        if entry[5] then
            return MARKED, entry[5]
        end
        prolong(VOTE, ttl)
        if last_is_valid and last < entry[1] then
            accept(entry[1], keep)
        else
            -- A server that is out of memory still executes this.
            redis.call('PEXPIRE', LAST, keep)
        end
        return YES, text(entry[1]) .. ' ' .. redis.call('PTTL', VOTE)
    end
    -- A vote for a smaller number of the same request is withdrawn, and its withdrawal, which is still in transit, names that number.
    local may_replace = not value or is_of(id) and entry[1] < number
    if restores and number > 0 and may_replace and last_is_valid and last <= number and not notice_of(id) then
        accept(number, keep)
        redis.call('SET', VOTE, id .. cmsgpack.pack({number, now, owner, label}), 'PX', ttl)
        return YES, text(number) .. ' ' .. ttl
    end
    return NO, notice_for(id)
end

local outcomes = {}
for i = 6, #ARGV, 5 do
    read(3 * (i - 6) / 5 + 1)
    local word, notice = extend(ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
    outcomes[#outcomes + 1] = word
    outcomes[#outcomes + 1] = notice
end
return {YES, 0, 0, now, member, outcomes}
