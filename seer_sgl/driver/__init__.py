"""The driver of a fleet: the asyncio loop, the engine monitor and the events of a rollout."""
