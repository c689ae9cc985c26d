"""Training runs: setup, attempts, the coordinator and its ledger."""
