-- Reserve again for a running request whose reservation Redis lost, unless Redis knows that the request ended. No limit is
-- checked, since the engine already runs the request. The rates a minute are not charged a second time.
-- KEYS leases, reservation, settled, leased_tenants, replica_held, replica_held_pages, then each level's hash
-- ARGV request_id, tenant_id, lease_ms, pages, input, output, nanos, microseconds of GPU time
-- Returns 1, or 0 where the reservation exists or the request has ended.

if redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 then
  return 0
end
local request_id, pages, tokens = ARGV[1], ARGV[4], ARGV[5] + ARGV[6]
local names = {}
for index = 7, #KEYS do
  local quota = KEYS[index]
  redis.call('HINCRBY', quota, 'concurrent', 1)
  redis.call('HINCRBY', quota, 'kv_pages', pages)
  redis.call('HINCRBY', quota, 'month_held', tokens)
  redis.call('HINCRBY', quota, 'spend_held_nanos', ARGV[7])
  redis.call('HINCRBY', quota, 'gpu_held_us', ARGV[8])
  names[#names + 1] = quota
end
redis.call('HSET', KEYS[2], 'levels', table.concat(names, ' '), 'pages', pages, 'input', ARGV[5], 'output', ARGV[6],
  'nanos', ARGV[7], 'gpu', ARGV[8], 'replica_held', KEYS[5], 'replica_pages', KEYS[6])
local expires_ms = math.floor(now_us() / 1000) + tonumber(ARGV[3])
redis.call('ZADD', KEYS[1], expires_ms, request_id)
redis.call('ZADD', KEYS[4], 'LT', expires_ms, ARGV[2])
release_replica(KEYS[5], KEYS[6], request_id)
redis.call('ZADD', KEYS[5], expires_ms, request_id)
redis.call('HSET', KEYS[6], request_id, pages)
redis.call('HINCRBY', KEYS[6], 'total', pages)
return 1
