-- Writes the record of a job, unless there is one of the same or a greater version, and returns the present one.
--
-- Inputs:    KEYS: the record (hash). To write it: token, revision, text, the time to keep it in ms; nothing to read it.
-- Returns:   {clock in us, token, revision or 0 if there is none, text}.
-- Atomicity: a script is one step of the server.
-- Clock:     the server's, read once.
local time = redis.call('TIME')
local function read()
    local fields = redis.call('HMGET', KEYS[1], 'token', 'revision', 'text')
    return tonumber(fields[1] or '0') or 0, tonumber(fields[2] or '0') or 0, fields[3] or ''
end
local token, revision, text = read()
if ARGV[1] then
    local new_token, new_revision = tonumber(ARGV[1]), tonumber(ARGV[2])
    if token < new_token or (token == new_token and revision < new_revision) then
        redis.call('HSET', KEYS[1], 'token', ARGV[1], 'revision', ARGV[2], 'text', ARGV[3])
        redis.call('PEXPIRE', KEYS[1], ARGV[4])
        token, revision, text = read()
    end
end
return {time[1] * 1000000 + time[2], token, revision, text}
