-- Shared by the scripts beside this one; the loader puts it in front of each. It knows how a month begins and how a
-- hold is given back. A tenant's keys share a hash tag; a replica's keys have another, so this needs one Redis (or one
-- with replicas behind it), not a Redis Cluster.

local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- "2026-11" of a Unix time in seconds, in UTC (days to civil date: Howard Hinnant, "chrono-compatible low-level date algorithms").
local function month_of(seconds)
  local days = math.floor(seconds / 86400) + 719468
  local era = math.floor(days / 146097)
  local day_of_era = days - era * 146097
  local year_of_era = math.floor(
    (day_of_era - math.floor(day_of_era / 1460) + math.floor(day_of_era / 36524) - math.floor(day_of_era / 146096)) / 365)
  local day_of_year = day_of_era - (365 * year_of_era + math.floor(year_of_era / 4) - math.floor(year_of_era / 100))
  local shifted = math.floor((5 * day_of_year + 2) / 153)
  local month = shifted < 10 and shifted + 3 or shifted - 9
  local year = year_of_era + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d', year, month)
end

-- Tokens used this month. When the month has turned, the count starts again; what is held stays held.
local function month_used(quota, us)
  local month = month_of(math.floor(us / 1000000))
  local stored = redis.call('HMGET', quota, 'month', 'month_used')
  if stored[1] == month then
    return tonumber(stored[2]) or 0
  end
  redis.call('HSET', quota, 'month', month, 'month_used', 0)
  return 0
end

-- Give back what a reservation holds of its tenant. Returns its fields, or nil where it was given back before.
local function release_tenant(quota, leases, reservation, request_id)
  local held = redis.call('HMGET', reservation, 'pages', 'tokens', 'tokens_us', 'tokens_end_us')
  redis.call('ZREM', leases, request_id)
  if not held[1] then
    return nil
  end
  redis.call('DEL', reservation)
  redis.call('HINCRBY', quota, 'concurrent', -1)
  redis.call('HINCRBY', quota, 'kv_pages', -held[1])
  redis.call('HINCRBY', quota, 'month_held', -held[2])
  return { tokens = tonumber(held[2]), tokens_us = tonumber(held[3]), tokens_end_us = tonumber(held[4]) or 0 }
end

-- Give back what a request holds of a replica, if anything.
local function release_replica(held, pages, request_id)
  local count = redis.call('HGET', pages, request_id)
  redis.call('ZREM', held, request_id)
  if count then
    redis.call('HDEL', pages, request_id)
    redis.call('HINCRBY', pages, 'total', -count)
  end
end

local EXPIRED_AT_ONCE_MAX = 1000

-- Give back what the leases that ran out hold on a replica.
local function expire_replica(held, pages, now_ms)
  for _, request_id in ipairs(redis.call('ZRANGEBYSCORE', held, '-inf', now_ms, 'LIMIT', 0, EXPIRED_AT_ONCE_MAX)) do
    release_replica(held, pages, request_id)
  end
end
