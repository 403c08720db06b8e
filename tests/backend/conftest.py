"""A server of two engines."""

from tests.server.conftest import fakes as fakes  # noqa: PLC0414
from tests.server.conftest import it as it  # noqa: PLC0414
