-- Refuses proposals of a request from now on. Another process may have sent some that are still under way, so their numbers are not known.
--
-- Inputs:    id, how long they are refused in ms, the time when this call expires in us.
-- Returns:   YES. EXPIRED.
if now >= tonumber(ARGV[3]) then
    return {EXPIRED, 0, 0, now, '', ''}
end
keep_notice(ARGV[1], notice_for(ARGV[1]), tonumber(ARGV[2]))
return {YES, 0, 0, now, '', ''}
