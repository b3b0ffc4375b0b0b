"""Record sets from Kafka.

`source` is what the pipeline asks. It is made of

- one connection at a time: `connect`, `client`, with `options`, and `connection_health`, `connection_errors`;
- the assigned partitions, where each continues and what stopped it: `partitions`, `partition_state`;
- what the cluster says of topics and groups: `metadata`, `topic_ids`;
- `group`: `membership`, `dead_members`, and `offset_commits` as advice for lag monitors;
- `internals`, the only code on private names of kafka-python: `raw_fetcher`, `patient_coordinator`,
  `decompression_bound`, `features`;
- `probes` over connections of their own: `damage_probe`, `log_bounds`, `reachability`.
"""

from analyzer.kafka.source import KafkaRecords

__all__ = ["KafkaRecords"]
