-- Returns the membership of this server: its votes count, or do not count yet. Compares the list of servers that the client uses, and its
-- settings, with the lists in use, and records it unless it does not agree with one of them.
--
-- Two lists agree if every majority of one shares a server with every majority of the other, in the best case: a server of either list that is
-- not known may be any server of the other one.
--
-- Inputs:    run, witness, observed (see `membership`); the list, 'SETTINGS SIZE IDENTITY,IDENTITY,…' ('' agrees with all, and is not
--            recorded); the time in ms for which it is in use; a random identity; 'record', or 'compare', which records nothing; the time
--            when this call expires in us.
-- Returns:   YES with the membership, and the identity of this server, or '' if it is too new to be compared. OTHER with the list in use.
--            EXPIRED.
local EXPIRED, OTHER = 6, 7
local LISTS, IDENTITY = MEMBER .. ':lists', MEMBER .. ':identity'
local list, keep, fresh, records = ARGV[4], tonumber(ARGV[5]) * 1000, ARGV[6], ARGV[7] == 'record'

if now >= tonumber(ARGV[8]) then
    return {EXPIRED, 0, 0, now, '', ''}
end

-- Returns the identity of this server. It changes with the nonce: a server that was restarted, or has lost its data, is another one. It is
-- returned when no list can be recorded any more with the identity before (see `list.rs`). The lists of before are deleted: if the clock was set
-- back, they would last longer than those of the other servers.
local function identity(nonce)
    local known, since = string.match(redis.call('GET', IDENTITY) or '', '^(%S+) (%d+)$')
    since = tonumber(since)
    if not known or nonce and nonce ~= known or since > now then
        redis.call('SET', IDENTITY, (nonce or known or fresh) .. ' ' .. text(now))
        redis.call('DEL', LISTS)
        return ''
    end
    return now - since > 2 * keep and known or ''
end

-- Returns the settings, the size and the identities of a list.
local function parse(list)
    local settings, size, known = string.match(list, '^(%S+) (%d+) (%S*)$')
    local identities, count = {}, 0
    for id in string.gmatch(known or '', '[^,]+') do
        identities[id] = true
        count = count + 1
    end
    return settings, tonumber(size), identities, count
end

local function agree(one, other)
    local settings, size, identities, known = parse(one)
    local other_settings, other_size, other_identities, other_known = parse(other)
    if settings ~= other_settings then
        return false
    end
    local shared = 0
    for id in pairs(identities) do
        shared = shared + (other_identities[id] and 1 or 0)
    end
    -- The servers that are not known are those of the other list, or are the same ones.
    local unknown, other_unknown = size - known, other_size - other_known
    local first, second = math.min(unknown, other_known - shared), math.min(other_unknown, known - shared)
    shared = shared + first + second + math.min(unknown - first, other_unknown - second)
    local quorums = math.floor(size / 2) + math.floor(other_size / 2) + 2
    return quorums > size + other_size - shared
end

-- Returns a list in use with which that of the client does not agree, or nil.
local function other_list()
    local flat = redis.call('HGETALL', LISTS)
    for i = 1, #flat, 2 do
        local ends, kept = string.match(flat[i + 1], '^(%d+) (%d+)$')
        ends, kept = tonumber(ends or 0), tonumber(kept or 0)
        if ends <= now then
            redis.call('HDEL', LISTS, flat[i])
        else
            -- The clock was set back.
            if ends - now > kept then
                redis.call('HSET', LISTS, flat[i], text(now + kept) .. ' ' .. text(kept))
            end
            if list ~= '' and flat[i] ~= list and not agree(flat[i], list) then
                return flat[i]
            end
        end
    end
    return nil
end

-- A client that is refused, or has only compared its list so far, does not end the delay of this server: its `max_ttl` may be too small.
local unobserved = string.gsub(ARGV[3], '^(%S+) %S+ %d+', '%1 - 0')
local member = membership(ARGV[1], ARGV[2], unobserved)
local nonce = string.match(redis.call('GET', MEMBER) or '', '^%l+ %S+ [01] (%S+) %d+$')
local id = identity(nonce)
local other = other_list()
if other then
    return {OTHER, 0, 0, now, member, other}
end
if records then
    member = membership(ARGV[1], ARGV[2], ARGV[3])
    if list ~= '' then
        redis.call('HSET', LISTS, list, text(now + keep) .. ' ' .. text(keep))
        if redis.call('PTTL', LISTS) < keep / 1000 then
            redis.call('PEXPIRE', LISTS, ARGV[5])
        end
    end
end
return {YES, 0, 0, now, member, id}
