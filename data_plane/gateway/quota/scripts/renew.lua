-- Extend the leases of one tenant's requests on one replica, and record their checkpoints. An expired lease is not
-- restored: another request may have taken its holds.
-- KEYS leases, replica_held
-- ARGV lease_ms, reservation_prefix, settled_prefix, then for each request: request_id, checkpoint ('' where the last one is complete),
--      its input, output, nanos, microseconds of GPU time
-- Returns the number of missing leases (settled, expired, or lost by Redis), the ids of the expired ones, and the ids that
-- Redis does not know.

local expires_ms = math.floor(now_us() / 1000) + tonumber(ARGV[1])
local missing, expired, unknown = 0, {}, {}
for index = 4, #ARGV, 6 do
  local request_id = ARGV[index]
  if redis.call('ZSCORE', KEYS[1], request_id) then
    redis.call('ZADD', KEYS[1], 'XX', expires_ms, request_id)
    redis.call('ZADD', KEYS[2], 'XX', expires_ms, request_id)
    if ARGV[index + 1] ~= '' then
      redis.call('HSET', ARGV[2] .. request_id, 'checkpoint', ARGV[index + 1], 'checkpoint_input', ARGV[index + 2],
        'checkpoint_output', ARGV[index + 3], 'checkpoint_nanos', ARGV[index + 4], 'checkpoint_gpu', ARGV[index + 5])
    end
  else
    missing = missing + 1
    local marker = redis.call('GET', ARGV[3] .. request_id)
    if not marker then
      unknown[#unknown + 1] = request_id
    elseif marker ~= SETTLED and marker ~= FREE then
      expired[#expired + 1] = request_id
    end
  end
end
return { missing, expired, unknown }
