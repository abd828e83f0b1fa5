"""Redis, as both halves use it: queues and the books of their messages, results, the shared clock, who lives."""
