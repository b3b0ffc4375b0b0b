"""The callers that send the most, over time."""
