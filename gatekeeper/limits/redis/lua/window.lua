-- A counter that starts again with each window. Words: limit, period, 1 for windows at whole multiples of
-- the period. The line: when the window began, and what passed in it.

rules.window = {words = 4}

function rules.window.read(key, word)
  local limit = {
    limit = tonumber(ARGV[word + 1]), period = tonumber(ARGV[word + 2]), aligned = ARGV[word + 3] == '1',
    used = 0, line = redis.call('GET', key) or '',
  }
  if limit.line ~= '' then
    local start, used = string.match(limit.line, '^(%d+) (%d+)$')
    start, used = tonumber(start), tonumber(used)
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
  local line = string.format('%.0f %.0f', limit.start, limit.used)
  keep(limit.key, line, limit.start + limit.period)
  return limit.line, line
end

function rules.window.spend(limit, at)
  if not limit.start or at >= limit.start + limit.period then
    limit.start, limit.used = at, 0
    if limit.aligned then limit.start = at - math.fmod(at, limit.period) end
  end
  limit.used = limit.used + cost
  return write_window(limit)
end

if op == 'refund' then
  function rules.window.refund(limit)
    if not limit.start then return end
    limit.used = limit.used - cost
    if limit.used > 0 then write_window(limit) else redis.call('DEL', limit.key) end
  end
end

function rules.window.standing(limit)
  return {limit.start or -1, limit.used}
end
