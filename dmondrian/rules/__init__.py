"""Rule policies: how a path becomes a prediction."""
