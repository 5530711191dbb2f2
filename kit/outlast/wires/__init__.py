"""Protocols: each folder turns requests into records, and records and logs into frames. Pure; imports core only."""
