"""The global KV pool: where the KV of a chunk waits for the engine that runs the next one."""
