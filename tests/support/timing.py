"""Times of the driver for tests."""

from seer_sgl.timing import Timing

QUICK = Timing(poll_s=0.02)  # engines that answer in milliseconds
# Every move waits until its KV is stored, also on a slow machine.
PATIENT = Timing(store_patience_s=300.0)
# Of a test that lets the clock jump by quick_call_s: polls that are under way are not late then.
OVER_JUMPS = Timing(poll_s=0.02, quick_call_s=30.0, control_timeout_s=600.0)
SOON = Timing(reconnect_s=0.02)  # a link that is lost
