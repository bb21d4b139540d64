-- Grants a lock without holders and waiters. The rest of the script is for all other cases.
--
-- Inputs, results, atomicity and clock: those of the claim that follows.
if redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[6]) == 0 and not redis.call('ZSCORE', KEYS[5], ARGV[1]) then
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    if now < tonumber(ARGV[10]) then
        local token, ttl = now, tonumber(ARGV[4])
        local last = redis.call('SET', KEYS[4], string.format('%.0f', token), 'GET')
        if last then
            local number = tonumber(last)
            if not (number and number >= 0 and number < 9007199254740991) then
                redis.call('SET', KEYS[4], last)
                return redis.error_reply('POLYLOCKLAST ' .. KEYS[4])
            end
            if number >= token then
                token = number + 1
                redis.call('SET', KEYS[4], string.format('%.0f', token))
            end
        end
        local entry = {token, tonumber(ARGV[2]), tonumber(ARGV[3]), now, now + ttl, ARGV[8], ARGV[9]}
        redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(entry))
        redis.call('PEXPIRE', KEYS[1], math.ceil(ttl / 1000) + 1000)
        return {1, token, ttl, 0, now}
    end
end
