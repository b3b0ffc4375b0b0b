-- Generic cell rate algorithm: the state is the time when the bucket will be full, or the queue free, again.
-- Times are whole microseconds and parts of one, so that nothing rounds.
-- Arguments: parts in a microsecond, rate, period, burst; 1 for a queue; how far ahead a booking may lie (-1:
-- any time); the time of the cost and that of a full bucket, each in microseconds and parts.
-- Stored: the time, its parts, then the first four arguments. By these another process detects that the limit
-- has changed.

rules.gcra = {arguments = 11}

-- Converts a time that was stored under another limit: permits that were used stay used; a queue's next turn
-- stays where it was.
local function converted(limit, due, part, tag)
  local old_parts, old_rate, old_period, old_burst = string.match(tag, '^(%d+) (%d+) (%d+) (%d+)$')
  local ahead = due - now + part / old_parts
  if limit.queue then return math.ceil(due + part / old_parts), 0 end
  if ahead <= 0 then return now, 0 end
  local used = math.min(ahead, old_burst * old_period / old_rate)
  local booked = ahead - used
  local ratio = (limit.period / limit.rate) / (old_period / old_rate)
  local spent = math.min(used * ratio, limit.capacity + limit.capacity_part / limit.parts) + booked * ratio
  local whole = math.floor(spent)
  -- The 0.001 is a thousandth of a microsecond: what floating point may have added.
  local left = math.max(0, math.ceil((spent - whole - 0.001) * limit.parts))
  if left >= limit.parts then return now + whole + 1, 0 end
  return now + whole, left
end

function rules.gcra.read(key, argument)
  local limit = {
    tag = table.concat(ARGV, ' ', argument + 1, argument + 4),
    parts = tonumber(ARGV[argument + 1]), rate = tonumber(ARGV[argument + 2]),
    period = tonumber(ARGV[argument + 3]), queue = ARGV[argument + 5] == '1',
    max_ahead = tonumber(ARGV[argument + 6]),
    cost = tonumber(ARGV[argument + 7]), cost_part = tonumber(ARGV[argument + 8]),
    capacity = tonumber(ARGV[argument + 9]), capacity_part = tonumber(ARGV[argument + 10]),
    due = now, part = 0, value = redis.call('GET', key) or '',
  }
  if limit.max_ahead < 0 then limit.max_ahead = nil end
  if limit.value ~= '' then
    local due, part, tag = string.match(limit.value, '^(%d+) (%d+) (.+)$')
    due, part = tonumber(due), tonumber(part)
    if tag ~= limit.tag then
      due, part = converted(limit, due, part, tag)
      limit.converted = true
    end
    if due >= now then limit.due, limit.part = due, part end
  end
  return limit
end

function rules.gcra.wait(limit)
  if cost == 0 and limit.queue then return 0 end
  local part = limit.part + limit.cost_part - limit.capacity_part
  local carry = math.floor(part / limit.parts)
  local early = limit.due + limit.cost - limit.capacity - now + carry
  if part > carry * limit.parts then early = early + 1 end
  return math.max(0, early)
end

local function write_due(limit, due, part)
  local carry = math.floor(part / limit.parts)
  limit.due, limit.part = due + carry, part - carry * limit.parts
  local value = string.format('%.0f %.0f %s', limit.due, limit.part, limit.tag)
  store(limit.key, value, limit.due + 1)
  return limit.value, value
end

function rules.gcra.spend(limit, at)
  if limit.due < at then limit.due, limit.part = at, 0 end
  return write_due(limit, limit.due + limit.cost, limit.part + limit.cost_part)
end

function rules.gcra.keep(limit)
  if limit.converted then write_due(limit, limit.due, limit.part) end
end

if op == 'refund' then
  function rules.gcra.refund(limit)
    if limit.queue or limit.value == '' then return end -- a departure cannot be taken back
    local due, part = limit.due - limit.cost, limit.part - limit.cost_part
    if part < 0 then due, part = due - 1, part + limit.parts end
    if due < now or (due == now and part == 0) then
      redis.call('DEL', limit.key)
    else
      write_due(limit, due, part)
    end
  end
end

function rules.gcra.status(limit)
  return {limit.due, limit.part}
end
