"""What the project adds to Flower."""
