-- Reserve, all or nothing: one request, its tokens, KV pages and cost at every level, and its pages on the replica.
-- KEYS leases, reservation, settled, leased_tenants, usage_stream, replica_held, replica_held_pages, quotas_rebuilt, request_log,
--      then each level's hash
-- ARGV request_id, tenant_id, lease_ms, marker_ttl_s, reservation_prefix, settled_prefix,
--      prompts (the prompt tokens of each sequence), max_tokens, min_tokens, block_tokens, replica_pages_max, input_nanos, output_nanos, page_nanos, request_log_max,
--      input_gpu_us, output_gpu_us, then for each level: requests_per_minute, tokens_per_minute, input_tokens_per_minute,
--      output_tokens_per_minute, gpu_us_per_minute, concurrent_requests, kv_pages, tokens_per_month, spend_ceiling_nanos,
--      charged_nanos, month_nanos, gpu_us_per_month (-1 is no limit), keep_s (-1 keeps the level's hash without an end)
-- Returns {verdict, level, wait_us, limit, remaining, fits, max_tokens, pages, requests_limit, requests_remaining,
--          requests_reset_us, tokens_limit, tokens_remaining, tokens_reset_us, replica_pages_held}
-- The verdict is '' where the reservation was made, else the first limit that blocks it, at the level with that number;
-- wait_us < 0 means that waiting never helps, and fits is the max_tokens that would fit now. The verdict is 'forgotten' where
-- a level limits the usage of a month or in total, and Redis lost those counters. Where max_tokens do not fit but min_tokens
-- do, as many as fit are granted.
-- Rates are GCRA (the ATM Forum's leaky bucket as a meter) with a burst of one minute's worth, kept as theoretical arrival
-- times in microseconds of the server's clock.

local FIRST_LEVEL, FIRST_LIMIT, LIMITS = 10, 18, 13
local MINUTE_US, PAGE_TOKENS = 60000000, 16
local NANOS_MAX = 9007199254740991 -- the largest integer that a Lua number represents exactly; no hold is larger
local RATES = { 'requests', 'tokens', 'input', 'output', 'gpu' }
local RATE_VERDICTS = { requests = 'requests_per_minute', tokens = 'tokens_per_minute', input = 'input_tokens_per_minute',
  output = 'output_tokens_per_minute', gpu = 'gpu_seconds_per_minute' }
local FIELDS = { 'month', 'concurrent', 'kv_pages', 'month_held', 'month_used', 'spend_held_nanos', 'spent_nanos',
  'month_spent_nanos', 'gpu_held_us', 'month_gpu_us', 'requests_tat_us', 'tokens_tat_us', 'input_tat_us', 'output_tat_us',
  'gpu_tat_us' }

local leases, reservation, replica_held, replica_pages = KEYS[1], KEYS[2], KEYS[6], KEYS[7]
local request_id, tenant_id, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local prompts, input = {}, 0
for prompt in string.gmatch(ARGV[7], '%d+') do
  prompts[#prompts + 1] = tonumber(prompt)
  input = input + tonumber(prompt)
end
local requested, least, block, replica_pages_max = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local input_nanos, output_nanos, page_nanos = tonumber(ARGV[12]), tonumber(ARGV[13]), tonumber(ARGV[14])
local input_gpu_us, output_gpu_us = tonumber(ARGV[16]), tonumber(ARGV[17])

local now = now_us()
local now_ms = math.floor(now / 1000)
local month = month_of(math.floor(now / 1000000))

-- The most that the request may use with this many max_tokens.
local function needs(max_tokens)
  local need = { requests = 1, input = input, output = #prompts * max_tokens, pages = 0 }
  need.tokens = need.input + need.output
  for _, prompt in ipairs(prompts) do
    need.pages = need.pages + math.ceil((prompt + max_tokens) / block) * (block / PAGE_TOKENS)
  end
  need.nanos = math.min(NANOS_MAX, need.input * input_nanos + need.output * output_nanos + need.pages * page_nanos)
  need.gpu = need.input * input_gpu_us + need.output * output_gpu_us
  return need
end

local function read_level(index)
  local quota, first = KEYS[index], FIRST_LIMIT + (index - FIRST_LEVEL) * LIMITS
  local stored = redis.call('HMGET', quota, unpack(FIELDS))
  local level = { quota = quota, rates = {} }
  for position = 2, 10 do
    level[FIELDS[position]] = tonumber(stored[position]) or 0
  end
  if stored[1] ~= month then
    redis.call('HSET', quota, 'month', month, 'month_used', 0, 'month_spent_nanos', 0, 'month_gpu_us', 0)
    level.month_used, level.month_spent_nanos, level.month_gpu_us = 0, 0, 0
    if tonumber(ARGV[first + 12]) >= 0 then
      redis.call('EXPIRE', quota, ARGV[first + 12])
    end
  end
  for position, rate in ipairs(RATES) do
    local limit = tonumber(ARGV[first + position - 1])
    level.rates[position] = { name = rate, limit = limit, tat = math.max(tonumber(stored[10 + position]) or 0, now) }
  end
  level.concurrent_limit, level.pages_limit = tonumber(ARGV[first + 5]), tonumber(ARGV[first + 6])
  level.month_limit, level.spend_ceiling = tonumber(ARGV[first + 7]), tonumber(ARGV[first + 8])
  level.spent_is_lost = level.spent_nanos < tonumber(ARGV[first + 9]) -- Redis lost older charges
  level.spent_nanos = math.max(level.spent_nanos, tonumber(ARGV[first + 9]))
  level.month_nanos, level.month_gpu_limit = tonumber(ARGV[first + 10]), tonumber(ARGV[first + 11])
  return level
end

-- How many units still fit into a bucket. Only for a rate that has a limit.
local function left_in(rate)
  return math.max(0, math.floor((now + MINUTE_US - rate.tat) * rate.limit / MINUTE_US))
end

local function takes_us(rate, cost)
  return math.ceil(cost * MINUTE_US / rate.limit)
end

-- The nanodollars that a level may still hold by its ceiling and its month (the smaller of both), and the limit that decides.
local function spend_left(level)
  local left, limit = NANOS_MAX - level.spend_held_nanos, NANOS_MAX
  if level.spend_ceiling >= 0 and level.spend_ceiling - level.spent_nanos - level.spend_held_nanos < left then
    left, limit = level.spend_ceiling - level.spent_nanos - level.spend_held_nanos, level.spend_ceiling
  end
  if level.month_nanos >= 0 and level.month_nanos - level.month_spent_nanos - level.spend_held_nanos < left then
    left, limit = level.month_nanos - level.month_spent_nanos - level.spend_held_nanos, level.month_nanos
  end
  return left, limit
end

-- The microseconds of GPU time that a level's month still has; only where it has a limit.
local function gpu_left(level)
  return level.month_gpu_limit - level.month_gpu_us - level.gpu_held_us
end

local CHECKS = {
  function(level, need)
    local left = level.month_limit - level.month_used - level.month_held
    if level.month_limit >= 0 and need.tokens > left then
      return 'tokens_per_month', -1, level.month_limit, math.max(0, left)
    end
  end,
  function(level, need)
    if level.month_gpu_limit >= 0 and need.gpu > gpu_left(level) then
      return 'gpu_seconds_per_month', -1, level.month_gpu_limit, math.max(0, gpu_left(level))
    end
  end,
  function(level, need)
    local left, limit = spend_left(level)
    if need.nanos > left then
      return 'spend', -1, limit, math.max(0, left)
    end
  end,
  function(level, need)
    for _, rate in ipairs(level.rates) do
      local cost = need[rate.name]
      if rate.limit >= 0 and cost > 0 then
        local verdict = RATE_VERDICTS[rate.name]
        if cost > rate.limit then
          return verdict, -1, rate.limit, left_in(rate)
        end
        local wait_us = rate.tat + takes_us(rate, cost) - now - MINUTE_US
        if wait_us > 0 then
          return verdict, wait_us, rate.limit, left_in(rate)
        end
      end
    end
  end,
  function(level)
    if level.concurrent_limit >= 0 and level.concurrent + 1 > level.concurrent_limit then
      return 'concurrent_requests', level.concurrent_limit < 1 and -1 or 0, level.concurrent_limit, 0
    end
  end,
  function(level, need)
    if level.pages_limit >= 0 and level.kv_pages + need.pages > level.pages_limit then
      return 'kv_pages', need.pages > level.pages_limit and -1 or 0, level.pages_limit,
        math.max(0, level.pages_limit - level.kv_pages)
    end
  end,
}

local levels = {}

-- The first limit that blocks: verdict, level, wait_us, limit, remaining; nil where no limit blocks.
local function blocked(need)
  for _, check in ipairs(CHECKS) do
    for number, level in ipairs(levels) do
      local verdict, wait_us, limit, left = check(level, need)
      if verdict then
        return verdict, number, wait_us, limit, left
      end
    end
  end
end

-- The max_tokens that fit at every level now, at most the requested number; below 0 where even the prompt does not fit.
local function fitting()
  local most, pages, money, gpu = requested, math.huge, NANOS_MAX, math.huge
  for _, level in ipairs(levels) do
    if level.month_limit >= 0 then
      most = math.min(most, math.floor((level.month_limit - level.month_used - level.month_held - input) / #prompts))
    end
    if level.pages_limit >= 0 then
      pages = math.min(pages, level.pages_limit - level.kv_pages)
    end
    local tokens, inputs, output = level.rates[2], level.rates[3], level.rates[4]
    if tokens.limit >= 0 then
      most = math.min(most, math.floor((left_in(tokens) - input) / #prompts))
    end
    if inputs.limit >= 0 and input > left_in(inputs) then
      return -1
    end
    if output.limit >= 0 then
      most = math.min(most, math.floor(left_in(output) / #prompts))
    end
    if level.rates[5].limit >= 0 then
      gpu = math.min(gpu, left_in(level.rates[5]))
    end
    if level.month_gpu_limit >= 0 then
      gpu = math.min(gpu, gpu_left(level))
    end
    money = math.min(money, (spend_left(level)))
  end
  local fits, above = -1, most + 1
  while above - fits > 1 do
    local middle = above == most + 1 and most or math.floor((fits + above) / 2)
    local need = needs(middle)
    if need.nanos <= money and need.pages <= pages and need.gpu <= gpu then
      fits = middle
    else
      above = middle
    end
  end
  return fits
end

-- Of all levels that limit this rate: the limit, what is left, and the time to reset, where the least is left.
local function tightest(position)
  local found, least_left = nil, nil
  for _, level in ipairs(levels) do
    local rate = level.rates[position]
    if rate.limit >= 0 and (not found or left_in(rate) < least_left) then
      found, least_left = rate, left_in(rate)
    end
  end
  return found and { found.limit, least_left, found.tat - now } or { -1, -1, 0 }
end

local replica_total = 0

local function answer(verdict, number, wait_us, limit, left, fits, max_tokens, pages)
  local requests, tokens = tightest(1), tightest(2)
  return { verdict, number, wait_us, limit, left, fits, max_tokens, pages, requests[1], requests[2], requests[3],
    tokens[1], tokens[2], tokens[3], replica_total }
end

-- Reserve at one level; the refundable amounts are added to held.
local function take_at(position, level, need, held)
  local taken = { 'concurrent', level.concurrent + 1, 'kv_pages', level.kv_pages + need.pages,
    'month_held', exact(level.month_held + need.tokens), 'spend_held_nanos', exact(level.spend_held_nanos + need.nanos) }
  if need.gpu > 0 then
    taken[#taken + 1] = 'gpu_held_us'
    taken[#taken + 1] = exact(level.gpu_held_us + need.gpu)
  end
  if level.spent_is_lost then
    taken[#taken + 1] = 'spent_nanos'
    taken[#taken + 1] = exact(level.spent_nanos)
  end
  for _, rate in ipairs(level.rates) do
    if rate.limit >= 0 and need[rate.name] > 0 then
      local took_us = takes_us(rate, need[rate.name])
      rate.tat = rate.tat + took_us
      taken[#taken + 1] = rate.name .. '_tat_us'
      taken[#taken + 1] = exact(rate.tat)
      if rate.name ~= 'requests' then -- the count of requests is never refunded
        local n = position .. ':' .. rate.name
        held[#held + 1] = n .. '_us'
        held[#held + 1] = exact(took_us)
        held[#held + 1] = n .. '_end_us'
        held[#held + 1] = exact(rate.tat)
      end
    end
  end
  redis.call('HSET', level.quota, unpack(taken))
end

-- Store the reservation and its lease.
local function hold(need, names, held)
  local expires_ms = now_ms + lease_ms
  redis.call('HSET', reservation, 'levels', table.concat(names, ' '), 'pages', need.pages, 'input', exact(need.input),
    'output', exact(need.output), 'nanos', exact(need.nanos), 'gpu', exact(need.gpu), 'replica_held', replica_held, 'replica_pages',
    replica_pages, unpack(held))
  redis.call('ZADD', leases, expires_ms, request_id)
  redis.call('ZADD', KEYS[4], 'LT', expires_ms, tenant_id)
  redis.call('ZADD', replica_held, expires_ms, request_id)
  redis.call('HSET', replica_pages, request_id, need.pages)
  replica_total = redis.call('HINCRBY', replica_pages, 'total', need.pages)
end

local tenant = {
  leases = leases, usage_stream = KEYS[5], marker_ttl_s = ARGV[4], reservation_prefix = ARGV[5], settled_prefix = ARGV[6],
  request_log = KEYS[9], request_log_max = ARGV[15],
}
if redis.call('EXISTS', KEYS[3], reservation) > 0 then
  if redis.call('HEXISTS', reservation, 'checkpoint') == 1 then
    expire_leases(tenant, now) -- it ran at a gateway that died, which is counted before the id is reserved again
  end
  local marker = redis.call('GET', KEYS[3])
  if marker then -- it arrived after its own settlement: no caller waits for it, but a batch's line may be sent again
    return answer(marker == SETTLED and 'settled' or 'ended', 0, -1, 0, 0, 0, 0, 0)
  end
  finish(leases, reservation, request_id, NOTHING_USED, now)
end
expire_leases(tenant, now)
expire_replica(replica_held, replica_pages, now_ms)
for index = FIRST_LEVEL, #KEYS do
  levels[#levels + 1] = read_level(index)
end
if redis.call('EXISTS', KEYS[8]) == 0 then
  for number, level in ipairs(levels) do
    if level.month_limit >= 0 or level.spend_ceiling >= 0 or level.month_nanos >= 0 or level.month_gpu_limit >= 0 then
      return answer('forgotten', number, -1, 0, 0, 0, 0, 0)
    end
  end
end
replica_total = tonumber(redis.call('HGET', replica_pages, 'total')) or 0

local granted = requested
local need = needs(granted)
local verdict, number, wait_us, limit, left = blocked(need)
if verdict then
  local fits = fitting()
  granted = (fits >= least and least < requested) and fits or least
  need = needs(granted)
  verdict, number, wait_us, limit, left = blocked(need)
  if verdict then
    return answer(verdict, number, wait_us, limit, left, math.max(0, fits), 0, need.pages)
  end
end
if replica_total + need.pages > replica_pages_max then
  return answer('replica_pages', 0, 0, replica_pages_max, math.max(0, replica_pages_max - replica_total), 0, granted, need.pages)
end

local names, held = {}, {}
for position, level in ipairs(levels) do
  take_at(position, level, need, held)
  names[position] = level.quota
end
hold(need, names, held)
return answer('', 0, 0, 0, 0, granted, granted, need.pages)
