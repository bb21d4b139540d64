-- Parks a hold: it ends in a certain time, whether its lease ends earlier or later, and is not extended any more. Until then it keeps others
-- out.
--
-- Inputs:    the time when this call expires in us, id, token, the time in us until the end; the expiry in us of the last claim of which a
--            copy may still be delivered, also after that end, and the time in us for which one that other processes have sent may be: as
--            those of a release.
-- Returns:   1: the hold is parked, now or before. 0: there is no hold of the request with this token. A text: the notice of a break.
--            {-1, clock in us}: expired.
local id, token, left = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

if now >= tonumber(ARGV[1]) then
    return {-1, now}
end
local mine = holds()[id]
if not mine or mine[1] ~= token then
    return notice_for(id) or 0
end
if mine[8] then
    return mine[8] == '' and 1 or mine[8]
end
mine[8], mine[5] = '', now + left
hold(id, mine)
refuse(id, ARGV[5], ARGV[6])
return 1
