"""Record sets out of Kafka."""

from analyzer.kafka.records import KafkaRecords

__all__ = ["KafkaRecords"]
