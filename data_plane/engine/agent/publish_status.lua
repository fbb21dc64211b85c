-- Publishes a replica's status, or withdraws it, unless another agent that lives has the replica's id.
--
-- KEYS: the status; the residency; the replicas by heartbeat; the boot id that an admin drains.
-- ARGV: boot id; run folder id; status, or "" to withdraw it; residency, or "" where it has not changed; replica id;
-- milliseconds that status and residency last; milliseconds after which a silent replica is no longer listed;
-- milliseconds that a drain lasts after this.
-- Returns {1 when the residency is there, 1 when a drain is requested}, or the boot id of the other agent.

local boot_id, run_dir_id, status, residency, replica_id = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local lasts_ms, listed_ms, drain_lasts_ms = ARGV[6], tonumber(ARGV[7]), ARGV[8]

-- A boot that has the same folder has its lock, so the former one is dead.
local published = redis.call('GET', KEYS[1])
if published then
  local is_json, other = pcall(cjson.decode, published)
  if is_json and type(other) == 'table' and type(other.boot_id) == 'string' and other.boot_id ~= boot_id
      and other.run_dir_id ~= run_dir_id and other.state ~= 'failed' then
    return other.boot_id
  end
end

if status == '' then
  redis.call('DEL', KEYS[1], KEYS[2])
  redis.call('ZREM', KEYS[3], replica_id)
  return {0, 0}
end

local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('SET', KEYS[1], status, 'PX', lasts_ms)
redis.call('ZADD', KEYS[3], string.format('%.0f', now_ms), replica_id)
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now_ms - listed_ms))
local is_there
if residency == '' then
  is_there = redis.call('PEXPIRE', KEYS[2], lasts_ms)
else
  redis.call('SET', KEYS[2], residency, 'PX', lasts_ms)
  is_there = 1
end
local is_drained = redis.call('GET', KEYS[4]) == boot_id
if is_drained then
  redis.call('PEXPIRE', KEYS[4], drain_lasts_ms)
end
return {is_there, is_drained and 1 or 0}
