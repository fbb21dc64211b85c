-- Shared by the scripts beside this one; the loader puts it in front of each. It knows how a month begins, how a
-- reservation ends, and what becomes of one whose lease ran out. A tenant's keys share a hash tag; a replica's keys and
-- the platform's have others, so this needs one Redis (or one with replicas behind it), not a Redis Cluster.
--
-- A level (the platform, a tenant, a key) is one hash:
--   requests_tat_us, tokens_tat_us, input_tat_us, output_tat_us   theoretical arrival times of its four rates
--   concurrent, kv_pages, month_held, spend_held_nanos            what requests in work hold
--   month, month_used, month_spent_nanos, spent_nanos             what was settled, this month and in all
-- A reservation is one hash: `levels` names the hashes it holds of, `<n>:<rate>_us` and `<n>:<rate>_end_us` what it took of
-- the rates of the nth, the rest is what it holds of each. Numbers are integers below 2^53, which Lua counts exactly.

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

-- Where the month has turned, a level's count of it starts again; what is held stays held.
local function turn_month(quota, now)
  local month = month_of(math.floor(now / 1000000))
  if redis.call('HGET', quota, 'month') ~= month then
    redis.call('HSET', quota, 'month', month, 'month_used', 0, 'month_spent_nanos', 0)
  end
end

-- Add what was used to a level.
local function count_use(quota, used, now)
  local tokens = used.input + used.output
  if tokens > 0 or used.nanos > 0 then
    turn_month(quota, now)
    redis.call('HINCRBY', quota, 'month_used', tokens)
    redis.call('HINCRBY', quota, 'month_spent_nanos', used.nanos)
    redis.call('HINCRBY', quota, 'spent_nanos', used.nanos)
  end
end

-- Give back to one rate of a level what was taken of it and not used.
local function refund(quota, rate, took_us, end_us, took, used, now)
  if not took_us or took <= 0 then
    return
  end
  local back_us = math.floor(tonumber(took_us) * (took - used) / took)
  -- The bucket has drained since the reservation; what has drained is back already and must not be given twice.
  back_us = math.min(back_us, math.max(0, tonumber(end_us) - now))
  local tat = tonumber(redis.call('HGET', quota, rate .. '_tat_us')) or now
  redis.call('HSET', quota, rate .. '_tat_us', exact(tat - back_us))
end

-- Give back what a request holds of a replica, if anything.
local function release_replica(held, pages, request_id)
  local count = redis.call('HGET', pages, request_id)
  redis.call('ZREM', held, request_id)
  if count then
    redis.call('HDEL', pages, request_id)
    redis.call('HINCRBY', pages, 'total', 0 - count)
  end
end

-- End a reservation: every level it holds of gets that back and counts what was used. False where there is none any more.
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
  local input, output = tonumber(held.input), tonumber(held.output)
  local level = 0
  for quota in string.gmatch(held.levels, '%S+') do
    level = level + 1
    redis.call('HINCRBY', quota, 'concurrent', -1)
    redis.call('HINCRBY', quota, 'kv_pages', 0 - held.pages) -- not -x: Lua's minus zero is no integer to Redis
    redis.call('HINCRBY', quota, 'month_held', 0 - (input + output))
    redis.call('HINCRBY', quota, 'spend_held_nanos', 0 - held.nanos)
    local n = level .. ':'
    refund(quota, 'tokens', held[n .. 'tokens_us'], held[n .. 'tokens_end_us'], input + output, used.input + used.output, now)
    refund(quota, 'input', held[n .. 'input_us'], held[n .. 'input_end_us'], input, used.input, now)
    refund(quota, 'output', held[n .. 'output_us'], held[n .. 'output_end_us'], output, used.output, now)
    count_use(quota, used, now)
  end
  release_replica(held.replica_held, held.replica_pages, request_id)
  return true
end

local EXPIRED_AT_ONCE_MAX = 100
local SETTLED = '1' -- a marker that says anything else says what a lease that ran out was billed for

-- The marker of a request that was ended by its lease: tokens in, tokens out, nanodollars, and the estimate if there was one.
local function marker_of(used, event)
  return string.format('%.0f %.0f %.0f %s', used.input, used.output, used.nanos, event)
end

-- What such a marker says: use, and the estimate ('' for none).
local function read_marker(marker)
  local input, output, nanos, event = string.match(marker, '^(%d+) (%d+) (%d+) (.*)$')
  return { input = tonumber(input), output = tonumber(output), nanos = tonumber(nanos) }, event
end

-- End a tenant's reservations whose leases ran out: each counts what its last checkpoint says, and is billed for that, once.
-- The marker keeps what that was, so that a gateway that lives after all still settles the rest.
-- Returns how many there were. `tenant` has its leases, reservation_prefix, settled_prefix, usage_stream, marker_ttl_s.
local function expire_leases(tenant, now)
  local now_ms = math.floor(now / 1000)
  local expired = redis.call('ZRANGEBYSCORE', tenant.leases, '-inf', now_ms, 'LIMIT', 0, EXPIRED_AT_ONCE_MAX)
  for _, request_id in ipairs(expired) do
    local reservation = tenant.reservation_prefix .. request_id
    local said = redis.call('HMGET', reservation, 'checkpoint', 'checkpoint_input', 'checkpoint_output', 'checkpoint_nanos')
    local used = { input = 0, output = 0, nanos = 0 }
    if said[1] then
      used = { input = tonumber(said[2]), output = tonumber(said[3]), nanos = tonumber(said[4]) }
    end
    local marker = marker_of(used, said[1] or '')
    if not redis.call('SET', tenant.settled_prefix .. request_id, marker, 'NX', 'EX', tenant.marker_ttl_s) then
      used = { input = 0, output = 0, nanos = 0 }
    elseif said[1] then
      redis.call('XADD', tenant.usage_stream, '*', 'event', said[1])
    end
    finish(tenant.leases, reservation, request_id, used, now)
  end
  return #expired
end

-- Give back what the leases that ran out hold on a replica.
local function expire_replica(held, pages, now_ms)
  for _, request_id in ipairs(redis.call('ZRANGEBYSCORE', held, '-inf', now_ms, 'LIMIT', 0, EXPIRED_AT_ONCE_MAX)) do
    release_replica(held, pages, request_id)
  end
end
