-- Leases: who is at work, each until it is given back or its time is over. A sorted set: the name of each,
-- by when it ends in microseconds. ARGV: what to do, limit, how many, for how long, then names.

local key = KEYS[1]
local limit, cost, lasts = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now))
local op, done, renewed = ARGV[1], 0, {}

if op == 'give back' then
  for n = 5, #ARGV do done = done + redis.call('ZREM', key, ARGV[n]) end
elseif op == 'reset' then
  done = redis.call('DEL', key)
elseif op == 'renew' then
  for n = 5, #ARGV do
    if redis.call('ZSCORE', key, ARGV[n]) then
      redis.call('ZADD', key, string.format('%.0f', now + lasts), ARGV[n])
      done = done + 1
      renewed[done] = ARGV[n]
    end
  end
elseif redis.call('ZCARD', key) + cost <= limit then
  done = 1
  if op == 'take' then
    for n = 5, #ARGV do redis.call('ZADD', key, string.format('%.0f', now + lasts), ARGV[n]) end
  end
end

local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
if last[2] then redis.call('PEXPIRE', key, string.format('%.0f', math.ceil((tonumber(last[2]) - now) / 1000) + 1)) end
return {done, redis.call('ZCARD', key), unpack(renewed)}
