"""What runs on a worker: messages, units of work, blocks of rows, shards of the forest."""
