"""Trees with numbers that learn and predict together."""
