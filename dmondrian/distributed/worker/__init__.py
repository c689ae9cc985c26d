"""Code that runs on workers: messages, work units, cached blocks, shards of the forest."""
