"""Record sets out of Kafka.

`records` is the source that the pipeline asks. It holds together

- one connection after another: `connecting`, `client`, with the `options` of each;
- what of kafka-python is made to work otherwise: `raw`, `joining`, `unpacking`; `faces`: whether it can be;
- what we were given, where it goes on, what stopped it: `partitions`, `held`; and of which log it is: `logs`;
- what is wrong, and what to say of it: `watch`, `causes`, `membership`;
- what the cluster says of topics and groups: `metadata`; and what we say to the group: `advice`, `leftovers`.

Beside it stand questions over connections of their own: `damage`, how far it reaches; `bounds`, where logs
begin and end; `reach`, whether anybody answers.
"""

from analyzer.kafka.source import KafkaRecords

__all__ = ["KafkaRecords"]
