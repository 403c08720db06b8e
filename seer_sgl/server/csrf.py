"""Refuses requests that another site makes a browser send (CSRF and DNS rebinding). Pure.

A server without a token listens on loopback only, but a browser on the same machine reaches it: a
page can send it requests (they need no answer to do harm), and a domain name that resolves to
127.0.0.1 makes the page's own site of it (DNS rebinding).
"""

import ipaddress
from collections.abc import Mapping

NAVIGABLE = "/"  # a link on another page may lead here


def cross_site(method: str, path: str, headers: Mapping[str, str], own_host: str) -> str | None:
    """Returns why a request comes from another site's page; None if it does not.

    `own_host`: the host that the server was configured with. A program sends none of the headers
    but `Host`.
    """
    host = headers.get("Host", "")
    name = _hostname(host)
    if name and name != own_host and not _is_local(name):
        return f"a server without a token does not answer under the name {name}"
    if headers.get("Sec-Fetch-Site") in ("cross-site", "same-site") and not (
        method == "GET" and path == NAVIGABLE
    ):
        return "a page of another site sent the request"
    origin = headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != host:
        return f"a page of {origin} sent the request"
    return None


def _hostname(host: str) -> str:
    """Returns a Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _is_local(name: str) -> bool:
    """Returns whether no other site can own a name."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
