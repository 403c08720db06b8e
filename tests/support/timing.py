"""Times of the driver for tests."""

from seer_sgl.timing import Timing

QUICK = Timing(poll_s=0.02)  # engines that answer in milliseconds
# Every move waits until its KV is stored, also on a slow machine.
PATIENT = Timing(store_patience_s=300.0)
SOON = Timing(reconnect_s=0.02)  # a link that is lost
