"""One call, from the message to the stored result."""
