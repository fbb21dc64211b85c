-- Extend the leases of one tenant's requests on one replica. A lease that ran out before is not brought back: what it
-- held may be another's by now, and its settlement still counts.
-- KEYS leases, replica_held
-- ARGV lease_ms, request_id...
-- Returns how many of them had run out.

local expires_ms = math.floor(now_us() / 1000) + tonumber(ARGV[1])
local missing = 0
for index = 2, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[index]) then
    redis.call('ZADD', KEYS[1], 'XX', expires_ms, ARGV[index])
    redis.call('ZADD', KEYS[2], 'XX', expires_ms, ARGV[index])
  else
    missing = missing + 1
  end
end
return missing
