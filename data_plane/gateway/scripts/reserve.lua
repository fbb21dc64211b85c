-- All limits or none: take one request, its tokens and its KV pages from the tenant, and its pages from the replica.
-- KEYS quota, leases, reservation, replica_held, replica_held_pages
-- ARGV request_id, lease_ms, reservation_prefix, tokens, pages, replica_pages_max,
--      requests_per_minute, tokens_per_minute, concurrent_requests, kv_pages, tokens_per_month
-- Returns {verdict, wait_us, limit, remaining, requests_remaining, requests_reset_us, tokens_remaining, tokens_reset_us,
--          replica_pages_held}. The verdict is '' or the name of the first limit in the way; wait_us < 0 means never.
-- Rates are GCRA (the ATM Forum's leaky bucket as a meter) with a burst of one minute's worth, kept as theoretical arrival
-- times in microseconds of the server's clock.

local quota, leases, reservation, replica_held, replica_pages = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local request_id, lease_ms, prefix = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local tokens, pages = tonumber(ARGV[4]), tonumber(ARGV[5])
local replica_pages_max = tonumber(ARGV[6])
local requests_limit, tokens_limit = tonumber(ARGV[7]), tonumber(ARGV[8])
local concurrent_limit, pages_limit, month_limit = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local MINUTE_US = 60000000

local now = now_us()
local now_ms = math.floor(now / 1000)

for _, expired in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now_ms, 'LIMIT', 0, EXPIRED_AT_ONCE_MAX)) do
  release_tenant(quota, leases, prefix .. expired, expired)
end
expire_replica(replica_held, replica_pages, now_ms)

local used = month_used(quota, now)
local stored = redis.call('HMGET', quota, 'concurrent', 'kv_pages', 'requests_tat_us', 'tokens_tat_us', 'month_held')
local concurrent, pages_held = tonumber(stored[1]) or 0, tonumber(stored[2]) or 0
local requests_tat = math.max(tonumber(stored[3]) or 0, now)
local tokens_tat = math.max(tonumber(stored[4]) or 0, now)
local month_held = tonumber(stored[5]) or 0
local replica_total = tonumber(redis.call('HGET', replica_pages, 'total')) or 0

-- How many units still fit a bucket whose theoretical arrival time is tat.
local function remaining(limit, tat)
  return math.max(0, math.floor((now + MINUTE_US - tat) * limit / MINUTE_US))
end

local function answer(verdict, wait_us, limit, left)
  return { verdict, wait_us, limit, left, remaining(requests_limit, requests_tat), requests_tat - now,
    remaining(tokens_limit, tokens_tat), tokens_tat - now, replica_total }
end

-- Microseconds until a bucket takes `cost` more; 0 is now, -1 is never.
local function wait_for(limit, tat, cost)
  if cost > limit then
    return -1, 0
  end
  local cost_us = math.ceil(cost * MINUTE_US / limit)
  return math.max(0, tat + cost_us - now - MINUTE_US), cost_us
end

if used + month_held + tokens > month_limit then
  return answer('tokens_per_month', -1, month_limit, math.max(0, month_limit - used - month_held))
end
local requests_wait, request_us = wait_for(requests_limit, requests_tat, 1)
if requests_wait ~= 0 then
  return answer('requests_per_minute', requests_wait, requests_limit, remaining(requests_limit, requests_tat))
end
local tokens_wait, tokens_us = wait_for(tokens_limit, tokens_tat, tokens)
if tokens_wait ~= 0 then
  return answer('tokens_per_minute', tokens_wait, tokens_limit, remaining(tokens_limit, tokens_tat))
end
if concurrent + 1 > concurrent_limit then
  return answer('concurrent_requests', concurrent_limit < 1 and -1 or 0, concurrent_limit, 0)
end
if pages_held + pages > pages_limit then
  return answer('kv_pages', pages > pages_limit and -1 or 0, pages_limit, math.max(0, pages_limit - pages_held))
end
if replica_total + pages > replica_pages_max then
  return answer('replica_pages', 0, replica_pages_max, math.max(0, replica_pages_max - replica_total))
end

local expires_ms = now_ms + lease_ms
requests_tat, tokens_tat = requests_tat + request_us, tokens_tat + tokens_us
redis.call('HSET', quota, 'concurrent', concurrent + 1, 'kv_pages', pages_held + pages,
  'requests_tat_us', string.format('%.0f', requests_tat), 'tokens_tat_us', string.format('%.0f', tokens_tat),
  'month_held', string.format('%.0f', month_held + tokens))
redis.call('ZADD', leases, expires_ms, request_id)
redis.call('HSET', reservation, 'pages', pages, 'tokens', tokens, 'tokens_us', string.format('%.0f', tokens_us),
  'tokens_end_us', string.format('%.0f', tokens_tat))
redis.call('ZADD', replica_held, expires_ms, request_id)
redis.call('HSET', replica_pages, request_id, pages)
replica_total = redis.call('HINCRBY', replica_pages, 'total', pages)
return answer('', 0, 0, 0)
