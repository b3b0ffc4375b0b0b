-- Two windows, of which the older counts by how much of it is still in sight. Words: limit, period.
-- The line: the number of the window, what passed in the one before and in it, and the period.

rules.counter = {words = 3}

-- The floor of a * b / c, and what is left: in digits of 9 bits, because the product of two numbers
-- of 43 bits has no place in a double. Needs a < 2^45 and b, c < 2^43.
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

-- The windows in sight at `at`, or those of a booking ahead.
local function in_sight(limit, at)
  local number = math.floor(at / limit.period)
  if number * limit.period > at then number = number - 1 end
  if not limit.number or limit.number < number - 1 then return number, 0, 0 end
  if limit.number == number - 1 then return number, limit.used, 0 end
  return limit.number, limit.before, limit.used
end

-- How far into a window `count` of the one before weighs at most `room`.
local function falls(limit, count, room)
  if count <= room then return 0 end
  local quotient, rest = muldiv(room + 1, limit.period, count)
  if rest == 0 then quotient = quotient - 1 end
  return limit.period - quotient
end

function rules.counter.read(key, word)
  local limit = {
    limit = tonumber(ARGV[word + 1]), period = tonumber(ARGV[word + 2]), line = redis.call('GET', key) or '',
  }
  if limit.line ~= '' then
    local number, before, used, period = string.match(limit.line, '^(%d+) (%d+) (%d+) (%d+)$')
    number, before, used, period = tonumber(number), tonumber(before), tonumber(used), tonumber(period)
    if period ~= limit.period then -- the windows of that time, now where ours are
      limit.number, limit.before, limit.used, limit.period = number, before, used, period
      local _, kept_before, kept_used = in_sight(limit, now)
      limit.period = tonumber(ARGV[word + 2])
      number, before, used = math.floor(now / limit.period), kept_before, kept_used
    end
    limit.number, limit.before, limit.used = number, before, used
  end
  limit.number, limit.before, limit.used = in_sight(limit, now)
  return limit
end

function rules.counter.wait(limit)
  local room = limit.limit - limit.used - cost
  local at
  if room >= 0 then
    at = limit.number * limit.period + falls(limit, limit.before, room)
  else
    at = (limit.number + 1) * limit.period + falls(limit, limit.used, limit.limit - cost)
  end
  return math.max(0, at - now)
end

local function write_pair(limit)
  local line = string.format('%.0f %.0f %.0f %.0f', limit.number, limit.before, limit.used, limit.period)
  keep(limit.key, line, (limit.number + 2) * limit.period)
  return limit.line, line
end

function rules.counter.spend(limit, at)
  limit.number, limit.before, limit.used = in_sight(limit, at)
  limit.used = limit.used + cost
  return write_pair(limit)
end

if op == 'refund' then
  function rules.counter.refund(limit)
    if limit.line == '' then return end
    local rest = math.max(0, cost - limit.used)
    limit.before, limit.used = math.max(0, limit.before - rest), math.max(0, limit.used - cost)
    if limit.before + limit.used > 0 then write_pair(limit) else redis.call('DEL', limit.key) end
  end
end

function rules.counter.standing(limit)
  return {limit.number, limit.before, limit.used}
end
