-- Runs a command on your keys, unless a greater fencing token was recorded for the resource.
--
-- Inputs:    KEYS: the fence of the resource, then the keys that the command uses. In a cluster all of them must be in one slot, as keys
--            with the same hash tag are: {orders/42} and {orders/42}:fence. ARGV: the fencing token in decimal digits, the command, its
--            arguments.
-- Returns:   the reply of the command; or an error, without any effect: POLYLOCKSTALE if the token is smaller than the recorded one,
--            POLYLOCKTOKEN if it is not a token, or the key of the fence has another value.
-- Atomicity: a script is one step of the server.
-- Clock:     none.
--
-- An equal token is accepted. Tokens are compared by their digits, because a Lua number does not hold every 64-bit integer. The fence is
-- recorded before the command runs, and stays recorded if the command fails.
local function is_token(text)
    return #text <= 19 and (text == '0' or string.find(text, '^[1-9]%d*$') ~= nil)
end

local function is_less(one, other)
    return #one < #other or (#one == #other and one < other)
end

local token = ARGV[1]
if not (KEYS[1] and ARGV[2]) or not is_token(token) then
    return redis.error_reply('POLYLOCKTOKEN a fence needs its key, a fencing token in decimal digits, and a command')
end
local last = redis.call('GET', KEYS[1])
if last and not is_token(last) then
    return redis.error_reply('POLYLOCKTOKEN the key of the fence has a value that is not a fencing token: use another key')
end
if last and is_less(token, last) then
    return redis.error_reply('POLYLOCKSTALE fencing token ' .. token .. ' is stale: token ' .. last
        .. ' was recorded before, so the lock was lost')
end
if token ~= last then
    redis.call('SET', KEYS[1], token)
end
return redis.call(unpack(ARGV, 2))
