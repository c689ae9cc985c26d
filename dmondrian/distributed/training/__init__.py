"""A training run: set-up, attempts, the coordinator and its ledger."""
