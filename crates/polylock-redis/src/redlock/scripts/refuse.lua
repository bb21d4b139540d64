-- Refuses proposals of a request from now on. Another process may have sent some that are still under way, so their numbers are not known.
--
-- Inputs:    id, how long they are refused in ms.
-- Returns:   YES.
if not notice_of(ARGV[1]) then
    keep_notice(ARGV[1], '', tonumber(ARGV[2]))
end
return {YES, 0, 0, now, '', ''}
