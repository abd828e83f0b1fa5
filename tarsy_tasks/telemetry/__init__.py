"""What operators read: audit, metrics, history, health records and probes, with no opinion on who shows them."""
