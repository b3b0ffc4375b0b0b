-- When each of the last admissions was: a list, the newest first. Words: limit, period.
-- The admission at place `limit - cost` decides alone, wherever it is; nothing is scanned.

rules.log = {words = 3}

local function stamp(key, place)
  return tonumber(redis.call('LINDEX', key, place))
end

-- How many at the old end have left the period: in steps that double, then halve.
local function gone(limit)
  local over = now - limit.period
  local step, left = 1, 0 -- the oldest `left` are known to be gone
  while left + step <= limit.length and stamp(limit.key, -(left + step)) <= over do
    left, step = left + step, step * 2
  end
  while step > 1 do
    step = step / 2
    if left + step <= limit.length and stamp(limit.key, -(left + step)) <= over then left = left + step end
  end
  return left
end

function rules.log.read(key, word)
  local limit = {limit = tonumber(ARGV[word + 1]), period = tonumber(ARGV[word + 2]), newest = -1}
  limit.key, limit.length = key, redis.call('LLEN', key)
  limit.gone = gone(limit) -- cut off when something is written
  limit.length = limit.length - limit.gone
  if limit.length > 0 then limit.newest = stamp(key, 0) end
  return limit
end

function rules.log.wait(limit)
  if cost == 0 or limit.length == 0 then return 0 end
  -- Nobody passes before a booking that still lies ahead.
  local wait = math.max(0, limit.newest - now)
  local needed = cost - (limit.limit - limit.length)
  if needed > 0 then
    wait = math.max(wait, stamp(limit.key, limit.length - needed) + limit.period - now)
  end
  return wait
end

function rules.log.spend(limit, at)
  if limit.length == 0 and limit.gone > 0 then redis.call('DEL', limit.key) end
  if limit.length > 0 and limit.gone > 0 then redis.call('LTRIM', limit.key, 0, limit.length - 1) end
  local line, left = string.format('%.0f', at), cost
  while left > 0 do
    local stamps = {}
    for n = 1, math.min(left, 4000) do stamps[n] = line end -- more do not fit on Lua's stack
    redis.call('LPUSH', limit.key, unpack(stamps))
    left = left - #stamps
  end
  limit.length, limit.newest = limit.length + cost, at
  redis.call('PEXPIRE', limit.key, math.ceil((at + limit.period - now) / 1000) + 1)
  return '', line
end

-- The oldest that still count go, so that whichever was meant, what stays counts longer.
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

function rules.log.standing(limit)
  return {limit.length, limit.newest}
end
