"""The analyzer's pure part: values in, values out. No clock, no I/O, no logging, no threads.

`model` has the values that cross the analyzer's seams. Each package is one step on the way of a record:
`kafka_format` (bytes to records), `records` (records to requests), `counting` (requests to sums) and
`judging` (sums to locks). `fleet` judges what gates report about themselves,
`delays` has how late records and locks are.
"""
