"""The global KV pool, which keeps the KV of a chunk for the engine that runs the next chunk."""
