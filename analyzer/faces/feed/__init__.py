"""The lock feed over HTTP, and the reports of gates: what applications ask for all day."""
