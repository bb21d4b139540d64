-- Refuses proposals of a request from now on. Another process may have sent some that are still under way, so their numbers are not known.
--
-- Inputs:    id, how long they are refused in ms, the time when this call expires in us.
-- Returns:   YES. EXPIRED.
if now >= tonumber(ARGV[3]) then
    return {EXPIRED, 0, 0, now, '', ''}
end
if not notice_of(ARGV[1]) then
    keep_notice(ARGV[1], '', tonumber(ARGV[2]))
end
return {YES, 0, 0, now, '', ''}
