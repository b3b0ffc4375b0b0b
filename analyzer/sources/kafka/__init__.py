"""Record sets from Kafka.

`source` is what the pipeline reads. It is made of

- `client`: one connection at a time, with `options`; `metadata` of its topics; `connection_health` and
  `connection_errors`, which say what is wrong with it;
- `fetched_batches`: the outcome of a poll;
- `partitions`: the assigned partitions with their positions and gaps; `topic_ids`, by which a recreated topic
  is recognised;
- `group`: `membership`, `members`, `dead_members`, and `offset_commits` for lag monitors;
- `probes` over separate connections: `damage_probe`, `log_bounds`, `plain_records`, `replayed_records`,
  `reachability`, `record_counts`;
- `topic_writer`: records of alerts;
- `witness_topic`: the witness of the chain of acts (`analyzer.kernel.database.chain`);
- `internals`, the only package that uses private names of kafka-python: the facade `consumer`, the table
  `private_names`, and behind them `raw_fetcher` and `broker_connections`.

Not here: the format of batches and records (`analyzer.sources.batches`), and where positions are stored.
"""

from analyzer.sources.kafka.source import KafkaRecords

__all__ = ["KafkaRecords"]
