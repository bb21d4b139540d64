-- Refuses every number up to and including a number from now on.
--
-- Inputs:    run, witness, observed (see `membership`); id and number of the request that holds the lock (0: the number is not known), the
--            number to refuse, how long numbers are kept in ms.
-- Returns:   YES: the request has this server's vote, so no other request has one for a number that is refused from now on. NO: it does
--            not.
local member = membership(ARGV[1], ARGV[2], ARGV[3])
local id, number = ARGV[4], tonumber(ARGV[5])

if not last_is_valid then
    return redis.error_reply('POLYLOCKLAST ' .. LAST)
end
accept(tonumber(ARGV[6]), ARGV[7])
local is_held = is_of(id) and (number == 0 or entry[1] == number)
return {is_held and YES or NO, 0, 0, now, member, ''}
