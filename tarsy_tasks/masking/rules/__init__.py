"""The rules of masking: which names, prefixes and lines hold secrets. `masking` applies them."""
