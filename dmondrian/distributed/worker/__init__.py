"""Code that runs on workers: messages, work units, cached chunks, shards of the forest."""
