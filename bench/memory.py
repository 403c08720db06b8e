"""Memory of this process."""

import resource


def peak_mb() -> float:
    """Returns the most memory that this process has had so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6  # Linux: kibibytes
