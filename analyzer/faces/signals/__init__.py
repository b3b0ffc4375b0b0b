"""The state of the analyzer: `health` for probes, `metrics` for Prometheus, `doctor` for people."""
