"""What a worker reports: audit, metrics, health, alerts and its life."""
