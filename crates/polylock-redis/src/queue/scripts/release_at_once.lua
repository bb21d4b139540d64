-- Releases a lock without waiters. The rest of the script is for all other cases.
--
-- Inputs, results and atomicity: those of the release that follows. Clock: none.
if ARGV[2] == '0' and ARGV[3] == '0' and redis.call('EXISTS', KEYS[2]) == 0 then
    local removed = redis.call('HDEL', KEYS[1], ARGV[1])
    if removed == 1 or redis.call('EXISTS', KEYS[6]) == 0 then
        return removed
    end
end
