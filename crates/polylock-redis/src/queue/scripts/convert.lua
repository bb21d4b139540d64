-- Converts a hold to another mode, and gives it a new token.
--
-- Inputs:    id, token of the hold (with another token it is left as it is), new mode, its conflicts, the modes of other holders that are in
--            the way (0: a downgrade), the conflicts of the present mode, the bits of both modes (0: the conversion does not wait), the time
--            when this call expires in us, because another process may adopt the hold with this token.
-- Returns:   {1, token}: the hold has the new mode. {2, token}: it has another token. {3, us}: another holder is in the way, for this time
--            at most. {4, 0}: that holder waits for this hold. {0, 0}: there is no hold. A text: the notice of a break. {-1, clock in us}:
--            expired.
--
-- A hold that waits for a conversion has the bits of two modes, of which the greater one excludes all that the other does. So a hold whose
-- modes conflict with the present mode of this one waits for it.
local id, from, mode, conflicts = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local in_way, held_conflicts, waiting = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

if now >= tonumber(ARGV[8]) then
    return {-1, now}
end
local live = holds()
local mine = live[id]
if not mine then
    return notice_for(id) or {0, 0}
end
if mine[8] then
    return mine[8]
end
if mine[1] ~= from then
    return {mine[2] == mode and 1 or 2, mine[1]}
end
local left, deadlock, behind = nil, false, false
for other, entry in pairs(live) do
    if other ~= id and bit.band(entry[2], in_way) ~= 0 then
        left = math.max(left or 0, entry[5] - now)
        deadlock = deadlock or bit.band(entry[2], held_conflicts) ~= 0
        behind = behind or bit.band(entry[2], entry[2] - 1) ~= 0
    end
end
if deadlock then
    return {4, 0}
end
if left then
    if waiting ~= 0 and not behind then
        mine[2], mine[3] = waiting, conflicts
        hold(id, mine)
    end
    return {3, left}
end
local token = draw()
if not token then
    return no_greater_number()
end
mine[1], mine[2], mine[3] = token, mode, conflicts
hold(id, mine)
if in_way == 0 then
    local _, all = holds()
    settle(all)
end
return {1, token}
