"""Where a server is: `host:port`, and `http://host:port`. What DNS cannot look up is refused."""

import ipaddress
import re

LAST_PORT = 65535
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
HOST = rf"(?=[^:/]{{1,253}}(?:[:/]|\Z)){_LABEL}(?:\.{_LABEL})*"
ADDRESS = re.compile(rf"{HOST}:([0-9]{{1,5}})")
URL = re.compile(rf"https?://(?:{HOST}|\[([0-9A-Fa-f:.]+)\])(?::([0-9]{{1,5}}))?/?")


def is_address(text: str) -> bool:
    """Whether a text is host:port."""
    found = ADDRESS.fullmatch(text)
    return found is not None and _is_port(found[1])


def is_url(text: str) -> bool:
    """Whether a text is http://host:port, the port optional, and nothing more."""
    found = URL.fullmatch(text)
    if found is None or not (found[2] is None or _is_port(found[2])):
        return False
    return found[1] is None or _is_ipv6(found[1])


def _is_port(digits: str) -> bool:
    return 1 <= int(digits) <= LAST_PORT


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
