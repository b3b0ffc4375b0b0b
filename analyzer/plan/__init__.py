"""The language of a plan: what is counted, how records are read, and what policies say.

- `groupings`, `meters`, `derived_meters` and `meter_units`: what is counted
- `mapping` and what its values mean: `value_rules`, `timestamps`, `decimals`, `route_matcher`,
  `format_decoder`; `patterns` of conditions: `expressions` are read into trees, `automata` find them in texts
- `policies`, `windows`: what is judged; `plan` holds all of it, `plan_differences` and `proposals` compare
- `sums`: what is added up for policies, by which they share totals
- `catalog`, `stretches`, `counted_stretches`: the numbers of a plan's names in rows, and which offsets each
  version has counted

How records are counted and policies are judged is not here: see `counting` and `judging`.
"""
