"""Peers to compare with: their environments (`build`), their processes (`runner`, `worker`)."""
