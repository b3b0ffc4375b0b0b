if op == 'reset' then return redis.call('DEL', unpack(KEYS)) end

local limits, argument, wait = {}, 4, 0
for n, key in ipairs(KEYS) do
  local rule = rules[ARGV[argument]]
  local limit = rule.read(key, argument)
  limit.key, limit.rule = key, rule
  argument = argument + rule.arguments
  limits[n] = limit
end

if op == 'cancel' then
  local cancelled = 1
  for n, limit in ipairs(limits) do
    local before, after = ARGV[argument + 2 * n - 2], ARGV[argument + 2 * n - 1]
    if limit.rule.put_back then
      cancelled = math.min(cancelled, limit.rule.put_back(limit, after))
    elseif redis.call('GET', limit.key) ~= after then
      cancelled = 0 -- a later request changed it
    elseif before == '' then
      redis.call('DEL', limit.key)
    else
      redis.call('SET', limit.key, before, 'KEEPTTL')
    end
  end
  return cancelled
end

if op == 'refund' then
  for _, limit in ipairs(limits) do limit.rule.refund(limit) end
  return 1
end

local too_far = false
for _, limit in ipairs(limits) do
  limit.wait = limit.rule.wait(limit)
  wait = math.max(wait, limit.wait)
end
for _, limit in ipairs(limits) do
  too_far = too_far or (limit.max_ahead and wait > limit.max_ahead)
end

local spent = 0
if (op == 'check' or op == 'allow') and wait == 0 then spent = 1 end
if op == 'reserve' and not too_far and (max_wait < 0 or wait <= max_wait) then spent = 1 end

if op == 'allow' and spent == 1 then -- the most frequent case
  for _, limit in ipairs(limits) do
    if cost > 0 then limit.rule.spend(limit, now) end
  end
  return 1
end

if spent == 0 then -- nothing is written below: what was stored under another limit is converted now, and lives on
  for _, limit in ipairs(limits) do limit.rule.keep(limit) end
end

local reply, bookings = {now, wait, spent}, {}
for _, limit in ipairs(limits) do
  if spent == 1 and cost > 0 then
    local before, after = limit.rule.spend(limit, now + wait)
    bookings[#bookings + 1], bookings[#bookings + 2] = before, after
  end
  reply[#reply + 1] = limit.wait
  for _, number in ipairs(limit.rule.status(limit)) do reply[#reply + 1] = number end
end
if op == 'reserve' then
  for _, value in ipairs(bookings) do reply[#reply + 1] = value end
end
return reply
