"""A log counted again beside the old counts, compared with them, and swapped in.

`twin_counter` counts by two plans at once, `replay_run` reads the log; `generations` are the stored replays,
`replay_comparison` says what differs, `swap` puts one in force.
"""
