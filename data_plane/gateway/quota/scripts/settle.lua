-- End a reservation once: refund its unused part, release every hold, count the usage and emit the usage event.
-- Where Redis lost the reservation, the script only counts the usage. Where the lease expired before, and its last
-- checkpoint was billed, the script counts the usage beyond that checkpoint. The event still states the whole usage, since
-- only billing knows what it has recorded.
-- KEYS settled, leases, reservation, usage_stream, replica_held, replica_held_pages, tenant_quota, key_quota, request_log
-- ARGV request_id, marker_ttl_s, used_input, used_output, used_nanos, event ('' where nothing is billed),
--      cached_saves_input, cached_saves_nanos: the discount on a prompt token from a prefix cache,
--      details of the request log, its most entries (0: no log), used_gpu_us, cached_saves_gpu_us
-- Returns {1, entry}, or {0, entry} where this request has settled before. The entry is the one of the stream that bills the
-- request, or the newest one where an earlier entry bills it; '' where nothing is billed.

local function newest()
  local last = redis.call('XREVRANGE', KEYS[4], '+', '-', 'COUNT', 1)[1]
  return last and last[1] or ''
end

local marker = redis.call('GET', KEYS[1])
local request_id, event, now = ARGV[1], ARGV[6], now_us()
local used = { input = tonumber(ARGV[3]), output = tonumber(ARGV[4]), nanos = tonumber(ARGV[5]), gpu = tonumber(ARGV[11]) }
if marker == SETTLED or marker == FREE then
  return { 0, newest() }
end
if marker then
  local billed, estimate = read_marker(marker)
  if estimate ~= '' then
    if event == '' or cjson.decode(estimate).outcome == 'yielded' then -- a batch's line was free, and runs again
      return { 0, newest() }
    end
    -- Tokens that were billed as cached stay cached, even if the final count has fewer: no record is taken back.
    local kept = math.max(0, cjson.decode(estimate).cached_tokens - cjson.decode(event).cached_tokens)
    used.input, used.nanos = used.input - kept * ARGV[7], used.nanos - kept * ARGV[8]
    used.gpu = used.gpu - kept * ARGV[12]
  end
  for name, before in pairs(billed) do
    used[name] = math.max(0, used[name] - before)
  end
end
redis.call('SET', KEYS[1], event == '' and FREE or SETTLED, 'EX', ARGV[2])

if not finish(KEYS[2], KEYS[3], request_id, used, now) then
  count_use(KEYS[7], used, now)
  if redis.call('EXISTS', KEYS[8]) == 1 then -- only a key that has limits has this hash
    count_use(KEYS[8], used, now)
  end
end
release_replica(KEYS[5], KEYS[6], request_id)
if event == '' then
  return { 1, '' }
end
log_request(KEYS[9], ARGV[10], event, ARGV[9])
return { 1, redis.call('XADD', KEYS[4], '*', 'event', event) }
