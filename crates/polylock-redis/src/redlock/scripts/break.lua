-- Takes the lock from whoever has it, and sees to it that a renewal does not bring it back.
--
-- Inputs:    how long numbers are kept in ms, name.
-- Answers:   {1, 0, 0, clock}.
if value then
    redis.call('DEL', LOCK)
    accept(entry[1] + 1, tonumber(ARGV[1]))
    ring(ARGV[2])
end
return {1, 0, 0, now}
