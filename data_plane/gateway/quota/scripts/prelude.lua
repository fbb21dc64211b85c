-- Functions that the scripts in this folder share; the loader puts this file in front of each. They start a new month,
-- end a reservation, and end the reservations whose leases expired. A tenant's keys share a hash tag, but a replica's keys
-- and the platform's have other tags. The scripts therefore need one Redis (replicas are fine), not a Redis Cluster.
--
-- A level (the platform, a tenant, a key, one day or month of a spending limit) is one hash:
--   requests_tat_us, tokens_tat_us, input_tat_us, output_tat_us, gpu_tat_us   theoretical arrival times of its five rates
--   concurrent, kv_pages, month_held, spend_held_nanos, gpu_held_us           holds of running requests
--   month, month_used, month_spent_nanos, month_gpu_us, spent_nanos           settled usage, this month and in total
-- A reservation is one hash. `levels` lists the keys of its levels. `<n>:<rate>_us` and `<n>:<rate>_end_us` are the time
-- that it took from a rate of the nth level, and that rate's arrival time afterwards. The other fields are its holds at
-- every level. Numbers are integers below 2^53, which Lua represents exactly.

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

local function exact(number)
  return string.format('%.0f', number)
end

-- In a new month, reset a level's counters of the month. Holds do not change.
local function turn_month(quota, now)
  local month = month_of(math.floor(now / 1000000))
  if redis.call('HGET', quota, 'month') ~= month then
    redis.call('HSET', quota, 'month', month, 'month_used', 0, 'month_spent_nanos', 0, 'month_gpu_us', 0)
  end
end

-- Add usage to a level.
local function count_use(quota, used, now)
  local tokens = used.input + used.output
  if tokens > 0 or used.nanos > 0 or used.gpu > 0 then
    turn_month(quota, now)
    redis.call('HINCRBY', quota, 'month_used', tokens)
    redis.call('HINCRBY', quota, 'month_spent_nanos', used.nanos)
    redis.call('HINCRBY', quota, 'spent_nanos', used.nanos)
    if used.gpu > 0 then
      redis.call('HINCRBY', quota, 'month_gpu_us', used.gpu)
    end
  end
end

-- Refund the unused part of a reservation to one rate of a level.
local function refund(quota, rate, took_us, end_us, took, used, now)
  if not took_us or took <= 0 then
    return
  end
  local back_us = math.floor(tonumber(took_us) * (took - used) / took)
  -- The bucket has drained since the reservation. The drained part is free again already and must not be refunded twice.
  back_us = math.min(back_us, math.max(0, tonumber(end_us) - now))
  local tat = tonumber(redis.call('HGET', quota, rate .. '_tat_us')) or now
  redis.call('HSET', quota, rate .. '_tat_us', exact(tat - back_us))
end

-- Release a request's KV pages on a replica, if it has any.
local function release_replica(held, pages, request_id)
  local count = redis.call('HGET', pages, request_id)
  redis.call('ZREM', held, request_id)
  if count then
    redis.call('HDEL', pages, request_id)
    redis.call('HINCRBY', pages, 'total', 0 - count)
  end
end

-- End a reservation: release its holds at every level and count its usage there. Returns false where it does not exist.
local function finish(leases, reservation, request_id, used, now)
  redis.call('ZREM', leases, request_id)
  local stored = redis.call('HGETALL', reservation)
  if #stored == 0 then
    return false
  end
  local held = {}
  for index = 1, #stored, 2 do
    held[stored[index]] = stored[index + 1]
  end
  redis.call('DEL', reservation)
  local input, output, gpu = tonumber(held.input), tonumber(held.output), tonumber(held.gpu or 0)
  local level = 0
  for quota in string.gmatch(held.levels, '%S+') do
    level = level + 1
    redis.call('HINCRBY', quota, 'concurrent', -1)
    redis.call('HINCRBY', quota, 'kv_pages', 0 - held.pages) -- not -x: Redis does not accept Lua's minus zero as an integer
    redis.call('HINCRBY', quota, 'month_held', 0 - (input + output))
    redis.call('HINCRBY', quota, 'spend_held_nanos', 0 - held.nanos)
    if gpu > 0 then
      redis.call('HINCRBY', quota, 'gpu_held_us', 0 - gpu)
    end
    local n = level .. ':'
    refund(quota, 'tokens', held[n .. 'tokens_us'], held[n .. 'tokens_end_us'], input + output, used.input + used.output, now)
    refund(quota, 'input', held[n .. 'input_us'], held[n .. 'input_end_us'], input, used.input, now)
    refund(quota, 'output', held[n .. 'output_us'], held[n .. 'output_end_us'], output, used.output, now)
    refund(quota, 'gpu', held[n .. 'gpu_us'], held[n .. 'gpu_end_us'], gpu, used.gpu, now)
    count_use(quota, used, now)
  end
  release_replica(held.replica_held, held.replica_pages, request_id)
  return true
end

local EXPIRED_AT_ONCE_MAX = 100
local NOTHING_USED = { input = 0, output = 0, nanos = 0, gpu = 0 }
local SETTLED, FREE = '1', '0' -- FREE: nothing was billed. Any other marker records what an expired lease was billed for

-- The marker of a request whose lease expired: input tokens, output tokens, nanodollars, microseconds of GPU time, and the
-- estimate if there is one.
local function marker_of(used, event)
  return string.format('%.0f %.0f %.0f %.0f %s', used.input, used.output, used.nanos, used.gpu, event)
end

-- Read such a marker: the usage, and the estimate ('' for none). A gateway of an older version writes no GPU time.
local function read_marker(marker)
  local input, output, nanos, gpu, event = string.match(marker, '^(%d+) (%d+) (%d+) (%d*) ?(.*)$')
  return { input = tonumber(input), output = tonumber(output), nanos = tonumber(nanos), gpu = tonumber(gpu) or 0 }, event
end

-- Append a served request to the request log. Above `max` entries the oldest are dropped; with 0 there is no log.
local function log_request(stream, max, event, details)
  if tonumber(max) > 0 then
    redis.call('XADD', stream, 'MAXLEN', '~', max, '*', 'event', event, 'details', details)
  end
end

-- End a tenant's reservations whose leases expired. Each one is counted and billed once, by its last checkpoint. The marker
-- records the billed amounts, so that a gateway that was only paused can still settle the rest.
-- Returns how many it ended. `tenant` has leases, reservation_prefix, settled_prefix, usage_stream, marker_ttl_s, request_log, request_log_max.
local function expire_leases(tenant, now)
  local now_ms = math.floor(now / 1000)
  local expired = redis.call('ZRANGEBYSCORE', tenant.leases, '-inf', now_ms, 'LIMIT', 0, EXPIRED_AT_ONCE_MAX)
  for _, request_id in ipairs(expired) do
    local reservation = tenant.reservation_prefix .. request_id
    local fields = redis.call('HMGET', reservation, 'checkpoint', 'checkpoint_input', 'checkpoint_output', 'checkpoint_nanos', 'checkpoint_gpu')
    local used = NOTHING_USED
    if fields[1] then
      used = { input = tonumber(fields[2]), output = tonumber(fields[3]), nanos = tonumber(fields[4]), gpu = tonumber(fields[5] or 0) }
    end
    local marker = marker_of(used, fields[1] or '')
    if not redis.call('SET', tenant.settled_prefix .. request_id, marker, 'NX', 'EX', tenant.marker_ttl_s) then
      used = NOTHING_USED
    elseif fields[1] then
      redis.call('XADD', tenant.usage_stream, '*', 'event', fields[1])
      log_request(tenant.request_log, tenant.request_log_max, fields[1], '{}')
    end
    finish(tenant.leases, reservation, request_id, used, now)
  end
  return #expired
end

-- Release the KV pages that expired leases hold on a replica.
local function expire_replica(held, pages, now_ms)
  for _, request_id in ipairs(redis.call('ZRANGEBYSCORE', held, '-inf', now_ms, 'LIMIT', 0, EXPIRED_AT_ONCE_MAX)) do
    release_replica(held, pages, request_id)
  end
end
