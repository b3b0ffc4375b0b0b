-- One decision over the limits in KEYS, which all lie in one slot: spent in each of them or in none.
--
-- ARGV: what to do, the cost, the longest wait for a booking (-1: any), then the words of each limit,
-- its kind first; to cancel, the texts before and after each booking at the end.
-- Answers {now, how long to wait, 1 when spent, then the numbers of each limit}; a booking, its texts too.
-- Times are whole microseconds of this server's clock: a double holds them exactly until the year 2255.

local op, cost, longest_wait = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

-- The floor of a * b / c, and what is left: in digits of 9 bits, because the product of two numbers
-- of 43 bits has no place in a double. Needs a < 2^45 and b, c < 2^43.
local function muldiv(a, b, c)
  local quotient, rest, unit = 0, 0, 68719476736 -- 2^36
  while unit >= 1 do
    local digit = math.floor(a / unit)
    a = a - digit * unit
    rest = rest * 512 + digit * b
    local left = math.fmod(rest, c)
    quotient = quotient * 512 + (rest - left) / c
    rest, unit = left, unit / 512
  end
  return quotient, rest
end

local function text(...)
  local words = {...}
  for n = 1, #words do words[n] = string.format('%.0f', words[n]) end
  return table.concat(words, ' ')
end

local function numbers(line)
  local found = {}
  for word in string.gmatch(line, '%S+') do found[#found + 1] = tonumber(word) end
  return found
end

-- Keep `line` until `settled`, when it will equal a key that was never seen.
local function keep(key, line, settled)
  redis.call('SET', key, line, 'PX', string.format('%.0f', math.max(1, math.ceil((settled - now) / 1000) + 1)))
end

-- Put back the line as it was before a booking, when it still is as the booking left it.
local function put_back(key, before, after)
  if redis.call('GET', key) ~= after then return 0 end
  if before == '' then redis.call('DEL', key) else redis.call('SET', key, before, 'KEEPTTL') end
  return 1
end

local rules = {}
