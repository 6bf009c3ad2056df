"""Where the server is: a fixed address, or something that can start one."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Optional, Protocol
from urllib.parse import urlsplit

from .errors import InvalidRequest


@dataclass(frozen=True)
class Address:
    """A server's address and the token for it. The token is not shown."""

    url: str
    token: Optional[str] = field(default=None, repr=False)


class Endpoint(Protocol):
    """Tells the address of the server."""

    # Whether proxies and certificates named by the environment are used.
    trust_env: bool
    # Whether `address` answers at once.
    is_fixed: bool

    def address(self) -> Address:
        """The present address; may block for some seconds, raises a `HapaxError`."""

    def find_again(self, failed: Address) -> bool:
        """Called after a connection was refused; true where there is another address now."""

    def close(self) -> None:
        """The client is closed."""


class FixedEndpoint:
    """A server that somebody else runs."""

    trust_env = True
    is_fixed = True

    def __init__(self, url: str, token: Optional[str]) -> None:
        self._address = Address(check_url(url), check_token(token))

    def address(self) -> Address:
        return self._address

    def find_again(self, failed: Address) -> bool:
        return False

    def close(self) -> None:
        return


def check_url(url: object) -> str:
    if not isinstance(url, str):
        raise InvalidRequest(f"url must be a str, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or parts.username:
        raise InvalidRequest(
            "url must be like http://127.0.0.1:8787, without query; a token goes into token="
        )
    return url.rstrip("/")


def check_token(token: object) -> Optional[str]:
    if token is None or token == "":
        return None
    if not isinstance(token, str) or any(not "!" <= character <= "~" for character in token):
        raise InvalidRequest(
            "token must be a str of printable ASCII, as `hapax token new` prints it"
        )
    return token


def endpoint_from(url: Optional[str], token: Optional[str]) -> Optional[FixedEndpoint]:
    """The server of the arguments or of the environment; None where neither names one.

    HAPAX_SERVER is the variable of the `hapax` command line; HAPAX_URL wins over it.
    """
    if url is None:
        url = os.environ.get("HAPAX_URL") or os.environ.get("HAPAX_SERVER") or None
    if url is None:
        return None
    if token is None:
        token = os.environ.get("HAPAX_TOKEN") or None
    return FixedEndpoint(url, token)
