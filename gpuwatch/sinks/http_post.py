"""One POST, and what its answer means for the queue: delivered, try again, or refused.

httpx is loaded at the first delivery: an agent without such a sink does not pay for it. Redirects are not followed, so
that a token goes nowhere but to the configured host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .delivery import Reject, Retry

if TYPE_CHECKING:
    import httpx

_AGAIN = (408, 425, 429)
_ANSWER_CHARS = 200


class Poster:
    """Keeps one connection to a receiver."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.url = url
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None

    async def post(self, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Raises Retry (unreachable, overloaded, 5xx) or Reject (any other answer than 2xx)."""
        import httpx

        if self._client is None:
            self._client = httpx.AsyncClient(timeout=self._timeout_s, follow_redirects=False)
        try:
            answer = await self._client.post(
                self.url, content=body, headers={"Content-Type": "application/json", **(headers or {})}
            )
        except httpx.HTTPError as error:
            raise Retry(f"{self.url}: {type(error).__name__} {error}".rstrip()) from error
        if answer.is_success:
            return
        said = f"{self.url}: {answer.status_code} {answer.text[:_ANSWER_CHARS]}"
        if answer.status_code in _AGAIN or answer.status_code >= 500:
            raise Retry(said)
        raise Reject(said)

    async def aclose(self) -> None:
        """Close the connection."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None
