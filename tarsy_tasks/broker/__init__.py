"""Redis, as agents and workers use it: queues, the in-flight table, results, the shared clock, heartbeats."""
