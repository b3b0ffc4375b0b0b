-- Sliding window counter: two windows, the older one weighted by the part of it that is still in the period.
-- Arguments: limit, period. Stored: the index of the current window, the count of the previous window, the
-- count of the current window, and the period.

rules.counter = {arguments = 3}

-- The floor of a * b / c, and the remainder: in digits of 9 bits, because the product of two numbers of 43 bits
-- does not fit into a double. Needs a < 2^45 and b, c < 2^43.
local function muldiv(a, b, c)
  local quotient, rest, unit = 0, 0, 68719476736 -- 2^36
  while unit >= 1 do
    local digit = math.floor(a / unit)
    a = a - digit * unit
    rest = rest * 512 + digit * b
    local left = math.fmod(rest, c)
    quotient = quotient * 512 + (rest - left) / c
    rest, unit = left, unit / 512
  end
  return quotient, rest
end

-- The two windows that count at `at`, or those of a booking ahead.
local function windows_at(limit, at)
  local index = math.floor(at / limit.period)
  if index * limit.period > at then index = index - 1 end
  if not limit.index or limit.index < index - 1 then return index, 0, 0 end
  if limit.index == index - 1 then return index, limit.used, 0 end
  return limit.index, limit.before, limit.used
end

-- Returns the time from the start of a window until `count` requests of the previous window weigh at most
-- `room`.
local function decayed(limit, count, room)
  if count <= room then return 0 end
  local quotient, rest = muldiv(room + 1, limit.period, count)
  if rest == 0 then quotient = quotient - 1 end
  return limit.period - quotient
end

function rules.counter.read(key, argument)
  local limit = {
    limit = tonumber(ARGV[argument + 1]), period = tonumber(ARGV[argument + 2]),
    value = redis.call('GET', key) or '',
  }
  if limit.value ~= '' then
    local index, before, used, period = string.match(limit.value, '^(%d+) (%d+) (%d+) (%d+)$')
    index, before, used, period = tonumber(index), tonumber(before), tonumber(used), tonumber(period)
    if period ~= limit.period then -- stored under another period: its counts move to our present windows
      limit.index, limit.before, limit.used, limit.period = index, before, used, period
      local _, kept_before, kept_used = windows_at(limit, now)
      limit.period = tonumber(ARGV[argument + 2])
      index, before, used = math.floor(now / limit.period), kept_before, kept_used
      limit.converted = true
    end
    limit.index, limit.before, limit.used = index, before, used
  end
  limit.index, limit.before, limit.used = windows_at(limit, now)
  return limit
end

function rules.counter.wait(limit)
  local room = limit.limit - limit.used - cost
  local at
  if room >= 0 then
    at = limit.index * limit.period + decayed(limit, limit.before, room)
  else
    at = (limit.index + 1) * limit.period + decayed(limit, limit.used, limit.limit - cost)
  end
  return math.max(0, at - now)
end

local function write_pair(limit)
  local value = string.format('%.0f %.0f %.0f %.0f', limit.index, limit.before, limit.used, limit.period)
  store(limit.key, value, (limit.index + 2) * limit.period)
  return limit.value, value
end

function rules.counter.spend(limit, at)
  limit.index, limit.before, limit.used = windows_at(limit, at)
  limit.used = limit.used + cost
  return write_pair(limit)
end

function rules.counter.keep(limit)
  if limit.converted then write_pair(limit) end
end

if op == 'refund' then
  function rules.counter.refund(limit)
    if limit.value == '' then return end
    local rest = math.max(0, cost - limit.used)
    limit.before, limit.used = math.max(0, limit.before - rest), math.max(0, limit.used - cost)
    -- The windows of a booking stay, also empty: the count of the present window is gone.
    if limit.before + limit.used > 0 or limit.index * limit.period > now then
      write_pair(limit)
    else
      redis.call('DEL', limit.key)
    end
  end
end

function rules.counter.status(limit)
  return {limit.index, limit.before, limit.used}
end
