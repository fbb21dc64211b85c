-- Ends or continues our claim of an Idempotency-Key: renew its lease, keep its answer, or forget it.
-- KEYS: the key's record, the tenant's kept answers.
-- ARGV: renew | keep | forget, our record, milliseconds, the record with its answer, answers kept at most.
-- Returns 1, or 0 where the record is not ours any more, and then nothing is changed.
if redis.call('GET', KEYS[1]) ~= ARGV[2] then
  return 0
end
if ARGV[1] == 'forget' then
  redis.call('DEL', KEYS[1])
elseif ARGV[1] == 'renew' then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
else
  local clock = redis.call('TIME')
  local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
  redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[3])
  redis.call('ZADD', KEYS[2], now_ms, KEYS[1])
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_ms - ARGV[3])
  local surplus = redis.call('ZCARD', KEYS[2]) - ARGV[5]
  if surplus > 0 then
    local oldest = redis.call('ZPOPMIN', KEYS[2], surplus)
    for i = 1, #oldest, 2 do
      redis.call('DEL', oldest[i])
    end
  end
end
return 1
