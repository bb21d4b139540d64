-- The first part of every script of a server: its clock, and its membership, which determines if its votes count.
--
-- Inputs:    KEYS: the last one is the membership of this server, which all locks of a prefix share.
-- Returns:   {word, number, ms, clock, membership, notice}, except where a script states otherwise.
-- Atomicity: a script is one step of the server. No script involves other servers.
-- Clock:     the server's, read once. Every reply contains it, in whole microseconds since 1970.
local MEMBER = KEYS[#KEYS]
local YES = 1

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- Returns the decimal digits of a number. Lua's own conversion yields 14 digits and an exponent.
local function text(number)
    return string.format('%.0f', number)
end

-- Returns '' if this server's votes count, else 'NONCE AGE'. `run` is the run id of this server process as the client read it on this
-- connection ('' if restarts are trusted), `durable` is '1' if the server keeps all that it acknowledges, and `observed` is 'NONCE SEEN AGE
-- DELAY': a random nonce, the nonce that the client has seen on this run of the server ('-' if none), the minimum time in ms for which it
-- has seen it, and the time in ms that is required.
--
-- The key MEMBER is 'STATE RUN DURABLE NONCE AGE'. It is missing on a new server and on one that has lost its data. A server that was
-- restarted has another run id: it has kept its votes only if it was durable before the restart and is so now. The votes of a server that
-- may have lost some do not count until every lease that rested on them has expired: AGE counts that time by the monotonic clocks of
-- clients, which observe one after the other.
local function membership(run, durable, observed)
    if run == '' then
        return ''
    end
    local member = redis.call('GET', MEMBER)
    if member and string.find(member, 'confirmed ' .. run .. ' ' .. durable .. ' ', 1, true) == 1 then
        return ''
    end
    local state, known_run, was_durable, nonce, age
    if member then
        state, known_run, was_durable, nonce, age = string.match(member, '^(%l+) (%S+) ([01]) (%S+) (%d+)$')
    end
    local fresh, seen, seen_age, delay = string.match(observed, '^(%S+) (%S+) (%d+) (%d+)$')
    age = tonumber(age)
    if not state or known_run ~= run and not (was_durable == '1' and durable == '1') then
        state, was_durable, nonce, age = 'new', durable, fresh, 0
    elseif known_run ~= run then
        age = 0
    elseif durable == '0' then
        -- Settings may change while the server runs: if it was not durable for a time, it may have lost data at the next restart.
        was_durable = '0'
    end
    if state == 'new' and seen == nonce and tonumber(seen_age) > age then
        age = tonumber(seen_age)
        if age >= tonumber(delay) then
            state = 'confirmed'
        end
    end
    local after = state .. ' ' .. run .. ' ' .. was_durable .. ' ' .. nonce .. ' ' .. text(age)
    if after ~= member then
        redis.call('SET', MEMBER, after)
    end
    return state == 'confirmed' and '' or nonce .. ' ' .. text(age)
end
