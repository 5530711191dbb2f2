"""What tests of durable agents need: processes that die, databases that fail, effects that are counted."""
