-- End a bounded number of one tenant's reservations whose leases expired, and record when the next lease expires.
-- KEYS leases, leased_tenants, usage_stream, request_log
-- ARGV tenant_id, marker_ttl_s, reservation_prefix, settled_prefix, request_log_max
-- Returns how many it ended.

local swept = expire_leases({
  leases = KEYS[1], usage_stream = KEYS[3], marker_ttl_s = ARGV[2], reservation_prefix = ARGV[3], settled_prefix = ARGV[4],
  request_log = KEYS[4], request_log_max = ARGV[5],
}, now_us())
local earliest = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if earliest[1] then
  redis.call('ZADD', KEYS[2], earliest[2], ARGV[1])
else
  redis.call('ZREM', KEYS[2], ARGV[1])
end
return swept
