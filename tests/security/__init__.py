"""What keeps agents, workers and strangers apart on the way between them."""
