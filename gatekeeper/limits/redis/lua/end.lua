if op == 'reset' then return redis.call('DEL', unpack(KEYS)) end

local limits, word, wait = {}, 4, 0
for n, key in ipairs(KEYS) do
  local rule = rules[ARGV[word]]
  local limit = rule.read(key, word)
  limit.key, limit.rule = key, rule
  word = word + rule.words
  limits[n] = limit
end

if op == 'cancel' then
  local back = 1
  for n, limit in ipairs(limits) do
    local before, after = ARGV[word + 2 * n - 2], ARGV[word + 2 * n - 1]
    if limit.rule.put_back then
      back = math.min(back, limit.rule.put_back(limit, after))
    elseif redis.call('GET', limit.key) ~= after then
      back = 0 -- it is no more as the booking left it
    elseif before == '' then
      redis.call('DEL', limit.key)
    else
      redis.call('SET', limit.key, before, 'KEEPTTL')
    end
  end
  return back
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
  too_far = too_far or (limit.ahead and wait > limit.ahead)
end

local spent = 0
if (op == 'check' or op == 'allow') and wait == 0 then spent = 1 end
if op == 'reserve' and not too_far and (longest_wait < 0 or wait <= longest_wait) then spent = 1 end

if op == 'allow' and spent == 1 then -- as most are
  for _, limit in ipairs(limits) do
    if cost > 0 then limit.rule.spend(limit, now) end
  end
  return 1
end

local answer, texts = {now, wait, spent}, {}
for _, limit in ipairs(limits) do
  if spent == 1 and cost > 0 then
    local before, after = limit.rule.spend(limit, now + wait)
    texts[#texts + 1], texts[#texts + 2] = before, after
  end
  answer[#answer + 1] = limit.wait
  for _, number in ipairs(limit.rule.standing(limit)) do answer[#answer + 1] = number end
end
if op == 'reserve' then
  for _, line in ipairs(texts) do answer[#answer + 1] = line end
end
return answer
