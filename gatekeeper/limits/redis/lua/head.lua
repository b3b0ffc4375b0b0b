-- Begins a decision over the limits in KEYS, which all lie in one slot. Next come the rules that it needs
-- (one file each), and at the end decide.lua: permits are spent in each of the limits or in none.
--
-- ARGV: the operation (check, allow, peek, reserve, cancel, refund, reset), the cost, the longest wait for a
-- booking in microseconds (-1: any), then the arguments of each limit, its kind first; to cancel, the stored
-- values before and after each booking at the end.
-- Returns 1 to an "allow" that may pass, else {now, wait, 1 when spent, then of each limit its wait and its
-- numbers}; to a booking, each limit's stored value before and after it, too.
-- Times are whole microseconds of this server's clock: a double holds them exactly until the year 2255.

local op, cost, max_wait = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

-- Keys live until `reset`, when they will equal one that was never seen, and never shorter than they would have
-- lived already: another process, or this one before, may have written them under a slower limit.
local function store(key, value, reset)
  local life = math.max(1, math.ceil((reset - now) / 1000) + 1)
  redis.call('SET', key, value, 'PX', math.max(life, redis.call('PTTL', key)))
end

local function lengthen(key, reset)
  local life = math.ceil((reset - now) / 1000) + 1
  if redis.call('PTTL', key) < life then redis.call('PEXPIRE', key, life) end
end

-- Each run creates every function again, so those that few operations need are created for these alone.
local rules = {}
