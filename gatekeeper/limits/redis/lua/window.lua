-- Fixed window: a counter that starts again with each window. Arguments: limit, period, 1 for windows at whole
-- multiples of the period. Stored: the start of the window, the permits used in it, and of those the period.

rules.window = {arguments = 4}

function rules.window.read(key, argument)
  local limit = {
    limit = tonumber(ARGV[argument + 1]), period = tonumber(ARGV[argument + 2]),
    aligned = ARGV[argument + 3] == '1', used = 0, value = redis.call('GET', key) or '',
  }
  if limit.value ~= '' then
    local start, used, period = string.match(limit.value, '^(%d+) (%d+) ?(%d*)$')
    start, used, period = tonumber(start), tonumber(used), tonumber(period) or limit.period
    if now >= start + period then return limit end
    if period ~= limit.period or (limit.aligned and math.fmod(start, period) ~= 0) then
      -- Its count moves to our present window. A start after now is a booking's.
      start = math.max(start, now)
      start = start - math.fmod(start, limit.period)
      limit.converted = true
    end
    if now < start + limit.period then limit.start, limit.used = start, used end
  end
  return limit
end

function rules.window.wait(limit)
  if not limit.start then return 0 end
  if limit.used + cost <= limit.limit then return math.max(0, limit.start - now) end
  return limit.start + limit.period - now
end

local function write_window(limit)
  local value = string.format('%.0f %.0f', limit.start, limit.used)
  if limit.aligned then value = string.format('%s %.0f', value, limit.period) end
  store(limit.key, value, limit.start + limit.period)
  return limit.value, value
end

function rules.window.spend(limit, at)
  if not limit.start or at >= limit.start + limit.period then
    limit.start, limit.used = at, 0
    if limit.aligned then limit.start = at - math.fmod(at, limit.period) end
  end
  limit.used = limit.used + cost
  return write_window(limit)
end

function rules.window.keep(limit)
  if limit.converted and limit.start then
    write_window(limit)
  elseif limit.start then
    lengthen(limit.key, limit.start + limit.period)
  end
end

if op == 'refund' then
  -- While a booking lies ahead the count of the present window is gone, so a refund changes nothing.
  function rules.window.refund(limit)
    if not limit.start or limit.start > now then return end
    limit.used = limit.used - cost
    if limit.used > 0 then write_window(limit) else redis.call('DEL', limit.key) end
  end
end

function rules.window.status(limit)
  return {limit.start or -1, limit.used}
end
