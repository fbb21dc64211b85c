-- End a reservation, once: refund what was not used, release every hold, count the use and emit the usage event.
-- It works as well when Redis lost the reservation: then only use is counted. Where the lease ran out before, and its last
-- checkpoint was billed, what was used beyond that is counted, and billed by an event of its own: its id ends in ":rest".
-- KEYS settled, leases, reservation, usage_stream, replica_held, replica_held_pages, tenant_quota, key_quota
-- ARGV request_id, marker_ttl_s, used_input, used_output, used_nanos, event ('' where nothing is billed)
-- Returns 1, or 0 where this request has settled before.

-- What an event says beyond the estimate that was billed; '' where that is nothing.
local function remainder(event, estimate)
  local after, before = cjson.decode(event), cjson.decode(estimate)
  for _, name in ipairs({ 'input_tokens', 'cached_tokens', 'output_tokens', 'kv_page_ms' }) do
    after[name] = math.max(0, after[name] - before[name])
  end
  if after.input_tokens + after.output_tokens + after.kv_page_ms == 0 then
    return ''
  end
  after.cached_tokens = math.min(after.cached_tokens, after.input_tokens)
  after.first_token_ms = cjson.null -- the estimate's record has it
  after.request_id = after.request_id .. ':rest'
  return cjson.encode(after)
end

local marker = redis.call('GET', KEYS[1])
local request_id, event, now = ARGV[1], ARGV[6], now_us()
local used = { input = tonumber(ARGV[3]), output = tonumber(ARGV[4]), nanos = tonumber(ARGV[5]) }
if marker == SETTLED then
  return 0
end
if marker then
  local billed, estimate = read_marker(marker)
  if event == '' and estimate ~= '' then
    return 0
  end
  for name, before in pairs(billed) do
    used[name] = math.max(0, used[name] - before)
  end
  if estimate ~= '' then
    event = remainder(event, estimate)
  end
end
redis.call('SET', KEYS[1], SETTLED, 'EX', ARGV[2])

if not finish(KEYS[2], KEYS[3], request_id, used, now) then
  count_use(KEYS[7], used, now)
  if redis.call('EXISTS', KEYS[8]) == 1 then -- only a key with limits of its own has this hash
    count_use(KEYS[8], used, now)
  end
end
release_replica(KEYS[5], KEYS[6], request_id)
if event ~= '' then
  redis.call('XADD', KEYS[4], '*', 'event', event)
end
return 1
