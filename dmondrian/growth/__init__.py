"""Growth policies: where and when a cell splits."""
