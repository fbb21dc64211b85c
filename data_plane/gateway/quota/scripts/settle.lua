-- End a reservation, once: refund what was not used, release every hold, count the use and emit the usage event.
-- It works as well when the lease ran out before, or when Redis lost the reservation: then only use is counted.
-- KEYS settled, leases, reservation, usage_stream, replica_held, replica_held_pages, tenant_quota, key_quota
-- ARGV request_id, marker_ttl_s, used_input, used_output, used_nanos, event ('' where nothing is billed)
-- Returns 1, or 0 where this request has settled before.

if not redis.call('SET', KEYS[1], 1, 'NX', 'EX', ARGV[2]) then
  return 0
end
local request_id, now = ARGV[1], now_us()
local used = { input = tonumber(ARGV[3]), output = tonumber(ARGV[4]), nanos = tonumber(ARGV[5]) }

if not finish(KEYS[2], KEYS[3], request_id, used, now) then
  count_use(KEYS[7], used, now)
  if redis.call('EXISTS', KEYS[8]) == 1 then -- only a key with limits of its own has this hash
    count_use(KEYS[8], used, now)
  end
end
release_replica(KEYS[5], KEYS[6], request_id)
if ARGV[6] ~= '' then
  redis.call('XADD', KEYS[4], '*', 'event', ARGV[6])
end
return 1
