"""What operators read: audit, metrics, history, health records and probes."""
