-- A bucket, or a queue: when it will be full, or free, again, in whole microseconds and parts of one.
-- Words: parts in a microsecond, rate, period, burst; 1 for a queue; how far ahead a booking may lie (-1:
-- any distance); what the cost weighs and what a full bucket weighs, each in microseconds and parts.
-- The line: due, part of it, then the first four words, by which another process may see that its limit
-- is not ours.

rules.gcra = {words = 11}

-- As many permits as were used under the old limit stay used; a queue's next turn stays where it was.
local function adopted(limit, due, part, tag)
  local old_parts, old_rate, old_period, old_burst = string.match(tag, '^(%d+) (%d+) (%d+) (%d+)$')
  local ahead = due - now + part / old_parts
  if limit.queue then return math.ceil(due + part / old_parts), 0 end
  if ahead <= 0 then return now, 0 end
  local used = math.min(ahead, old_burst * old_period / old_rate)
  local booked = ahead - used
  local weight = (limit.period / limit.rate) / (old_period / old_rate)
  local spent = math.min(used * weight, limit.depth + limit.depth_part / limit.parts) + booked * weight
  local whole = math.floor(spent)
  -- The 0.001 is a thousandth of a microsecond: what floating point may have added.
  local left = math.max(0, math.ceil((spent - whole - 0.001) * limit.parts))
  if left >= limit.parts then return now + whole + 1, 0 end
  return now + whole, left
end

function rules.gcra.read(key, word)
  local limit = {
    tag = table.concat(ARGV, ' ', word + 1, word + 4),
    parts = tonumber(ARGV[word + 1]), rate = tonumber(ARGV[word + 2]), period = tonumber(ARGV[word + 3]),
    queue = ARGV[word + 5] == '1', ahead = tonumber(ARGV[word + 6]),
    cost = tonumber(ARGV[word + 7]), cost_part = tonumber(ARGV[word + 8]),
    depth = tonumber(ARGV[word + 9]), depth_part = tonumber(ARGV[word + 10]),
    due = now, part = 0, line = redis.call('GET', key) or '',
  }
  if limit.ahead < 0 then limit.ahead = nil end
  if limit.line ~= '' then
    local due, part, tag = string.match(limit.line, '^(%d+) (%d+) (.+)$')
    due, part = tonumber(due), tonumber(part)
    if tag ~= limit.tag then due, part = adopted(limit, due, part, tag) end
    if due >= now then limit.due, limit.part = due, part end
  end
  return limit
end

function rules.gcra.wait(limit)
  if cost == 0 and limit.queue then return 0 end
  local part = limit.part + limit.cost_part - limit.depth_part
  local carry = math.floor(part / limit.parts)
  local early = limit.due + limit.cost - limit.depth - now + carry
  if part > carry * limit.parts then early = early + 1 end
  return math.max(0, early)
end

local function write(limit, due, part)
  local carry = math.floor(part / limit.parts)
  limit.due, limit.part = due + carry, part - carry * limit.parts
  local line = string.format('%.0f %.0f %s', limit.due, limit.part, limit.tag)
  keep(limit.key, line, limit.due + 1)
  return limit.line, line
end

function rules.gcra.spend(limit, at)
  if limit.due < at then limit.due, limit.part = at, 0 end
  return write(limit, limit.due + limit.cost, limit.part + limit.cost_part)
end

if op == 'refund' then
  function rules.gcra.refund(limit)
    if limit.queue or limit.line == '' then return end -- departures cannot be taken back
    local due, part = limit.due - limit.cost, limit.part - limit.cost_part
    if part < 0 then due, part = due - 1, part + limit.parts end
    if due < now or (due == now and part == 0) then redis.call('DEL', limit.key) else write(limit, due, part) end
  end
end

function rules.gcra.standing(limit)
  return {limit.due, limit.part}
end
