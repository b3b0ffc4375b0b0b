"""The replay of logs: reads them again, and counts them into a shadow generation."""
