-- Leases of one key: permits in use, each until it is released or its time ends. Stored: a sorted set of names,
-- by when they end in microseconds.
-- ARGV: the operation (take, peek, release, extend, reset), the limit, the number of leases, their duration in
-- microseconds, then names. Returns {the number of released or extended leases, for take and peek 1 if there is
-- room, for reset 1 if the key existed, else 0; the number of leases that run; extended names}.

local key = KEYS[1]
local limit, cost, lasts = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now))
local op, done, extended = ARGV[1], 0, {}

if op == 'release' then
  for n = 5, #ARGV do done = done + redis.call('ZREM', key, ARGV[n]) end
elseif op == 'reset' then
  done = redis.call('DEL', key)
elseif op == 'extend' then
  for n = 5, #ARGV do
    if redis.call('ZSCORE', key, ARGV[n]) then
      redis.call('ZADD', key, string.format('%.0f', now + lasts), ARGV[n])
      done = done + 1
      extended[done] = ARGV[n]
    end
  end
elseif redis.call('ZCARD', key) + cost <= limit then
  done = 1
  if op == 'take' then
    for n = 5, #ARGV do redis.call('ZADD', key, string.format('%.0f', now + lasts), ARGV[n]) end
  end
end

local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
if last[2] then
  redis.call('PEXPIRE', key, string.format('%.0f', math.ceil((tonumber(last[2]) - now) / 1000) + 1))
end
return {done, redis.call('ZCARD', key), unpack(extended)}
