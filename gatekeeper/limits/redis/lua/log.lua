-- Sliding window log. Arguments: limit, period. Stored: a list of the times of the last admissions, the newest
-- first. The admission at index `limit - cost` decides alone, so nothing is scanned.

rules.log = {arguments = 3}

local function stamp(key, index)
  return tonumber(redis.call('LINDEX', key, index))
end

-- Returns how many of the oldest admissions have left the period: an exponential, then a binary search.
local function count_expired(limit)
  local start = now - limit.period
  local step, expired = 1, 0 -- the oldest `expired` are known to have left
  while expired + step <= limit.length and stamp(limit.key, -(expired + step)) <= start do
    expired, step = expired + step, step * 2
  end
  while step > 1 do
    step = step / 2
    if expired + step <= limit.length and stamp(limit.key, -(expired + step)) <= start then
      expired = expired + step
    end
  end
  return expired
end

function rules.log.read(key, argument)
  local limit = {limit = tonumber(ARGV[argument + 1]), period = tonumber(ARGV[argument + 2]), newest = -1}
  limit.key, limit.length = key, redis.call('LLEN', key)
  limit.expired = count_expired(limit) -- removed with the next write
  limit.length = limit.length - limit.expired
  if limit.length > 0 then limit.newest = stamp(key, 0) end
  return limit
end

function rules.log.wait(limit)
  if cost == 0 or limit.length == 0 then return 0 end
  -- No request passes before a booking that still lies ahead.
  local wait = math.max(0, limit.newest - now)
  local needed = cost - (limit.limit - limit.length)
  if needed > 0 then
    wait = math.max(wait, stamp(limit.key, limit.length - needed) + limit.period - now)
  end
  return wait
end

function rules.log.spend(limit, at)
  local value, left = string.format('%.0f', at), cost
  while left > 0 do
    local stamps = {}
    for n = 1, math.min(left, 4000) do stamps[n] = value end -- more do not fit on Lua's stack
    redis.call('LPUSH', limit.key, unpack(stamps))
    left = left - #stamps
  end
  limit.length, limit.newest = limit.length + cost, at
  if limit.expired > 0 then redis.call('LTRIM', limit.key, 0, limit.length - 1) end
  lengthen(limit.key, at + limit.period)
  return '', value
end

function rules.log.keep(limit)
  if limit.length > 0 then lengthen(limit.key, limit.newest + limit.period) end
end

-- Removes the oldest admissions that still count, so that the limit is restored as late as possible.
if op == 'refund' then
  function rules.log.refund(limit)
    local left = limit.length - cost
    if left > 0 then redis.call('LTRIM', limit.key, 0, left - 1) else redis.call('DEL', limit.key) end
  end
end

if op == 'cancel' then
  function rules.log.put_back(limit, after)
    if limit.length < cost or redis.call('LINDEX', limit.key, 0) ~= after then return 0 end
    if redis.call('LINDEX', limit.key, cost - 1) ~= after then return 0 end
    redis.call('LTRIM', limit.key, cost, -1)
    return 1
  end
end

function rules.log.status(limit)
  return {limit.length, limit.newest}
end
