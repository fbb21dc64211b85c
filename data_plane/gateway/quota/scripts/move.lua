-- Move a request's KV pages from one replica to another. Its holds at its levels do not change.
-- KEYS old_replica_held, old_replica_held_pages, new_replica_held, new_replica_held_pages, reservation
-- ARGV request_id, lease_ms, pages, replica_pages_max
-- Returns {1, pages held on the new replica}, or {0, pages held there} where these do not fit; then nothing has changed.

local now_ms = math.floor(now_us() / 1000)
expire_replica(KEYS[3], KEYS[4], now_ms)
local total = tonumber(redis.call('HGET', KEYS[4], 'total')) or 0
if total + tonumber(ARGV[3]) > tonumber(ARGV[4]) then
  return { 0, total }
end
release_replica(KEYS[1], KEYS[2], ARGV[1])
redis.call('ZADD', KEYS[3], now_ms + tonumber(ARGV[2]), ARGV[1])
redis.call('HSET', KEYS[4], ARGV[1], ARGV[3])
total = redis.call('HINCRBY', KEYS[4], 'total', ARGV[3])
if redis.call('EXISTS', KEYS[5]) == 1 then -- its lease may have expired in the meantime
  redis.call('HSET', KEYS[5], 'replica_held', KEYS[3], 'replica_pages', KEYS[4])
end
return { 1, total }
