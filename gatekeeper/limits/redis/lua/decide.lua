-- One decision over the limits in KEYS, which all lie in one slot: spent in each of them or in none.
--
-- ARGV: what to do, the cost, the longest wait for a booking (-1: any), then the words of each limit,
-- its kind first; to cancel, the texts before and after each booking at the end.
-- Answers 1 to an "allow" that may pass, else {now, how long to wait, 1 when spent, then of each limit its
-- own wait and its numbers}; to a booking, the lines before and after it, too.
-- Times are whole microseconds of this server's clock: a double holds them exactly until the year 2255.

local op, cost, longest_wait = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

-- Keep `line` until `settled`, when it will equal a key that was never seen.
local function keep(key, line, settled)
  redis.call('SET', key, line, 'PX', math.max(1, math.ceil((settled - now) / 1000) + 1))
end

-- Every function is made anew in each run, so those that few runs need are made for these alone.
local rules = {}
