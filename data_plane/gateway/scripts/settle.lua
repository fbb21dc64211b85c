-- End a reservation, once: refund unused tokens, release every hold, add the month's use and emit the usage event.
-- It works as well when the lease ran out before, or when Redis lost the reservation: then only use is added.
-- KEYS quota, leases, reservation, settled, usage_stream, replica_held, replica_held_pages
-- ARGV request_id, used_tokens, event ('' where nothing is billed), marker_ttl_s
-- Returns 1, or 0 where this request has settled before.

if not redis.call('SET', KEYS[4], 1, 'NX', 'EX', ARGV[4]) then
  return 0
end
local quota, request_id, used = KEYS[1], ARGV[1], tonumber(ARGV[2])
local now = now_us()

local held = release_tenant(quota, KEYS[2], KEYS[3], request_id)
release_replica(KEYS[6], KEYS[7], request_id)
if held and held.tokens > 0 then
  local tat = tonumber(redis.call('HGET', quota, 'tokens_tat_us')) or now
  local refund_us = math.floor(held.tokens_us * (held.tokens - used) / held.tokens)
  -- The bucket has drained since the reservation; what has drained is back already and must not be given twice.
  refund_us = math.min(refund_us, math.max(0, held.tokens_end_us - now))
  redis.call('HSET', quota, 'tokens_tat_us', string.format('%.0f', tat - refund_us))
end
if used > 0 then
  month_used(quota, now)
  redis.call('HINCRBY', quota, 'month_used', used)
end
if ARGV[3] ~= '' then
  redis.call('XADD', KEYS[5], '*', 'event', ARGV[3])
end
return 1
