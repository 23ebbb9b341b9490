"""A webhook: each transition as one POST of its JSON, with the idempotency key in a header.

The token is read from its file at each delivery, so that a rotated one is used without a restart.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..config import Webhook
from ..model import Transition
from .delivery import Retry
from .http_post import Poster


class WebhookSink:
    """Posts transitions to the configured URL."""

    name = "webhook"
    newest_only = False

    def __init__(self, settings: Webhook) -> None:
        self._bearer_file = settings.bearer_file
        self._poster = Poster(settings.url, settings.timeout_s)

    async def send(self, transition: Transition) -> None:
        """Post one transition. Raises Retry or Reject."""
        key = f"{transition.incident.id}/{transition.kind}/{transition.at:.3f}"
        headers = {"Idempotency-Key": key, **self._authorization()}
        await self._poster.post(msgspec.json.encode(transition), headers)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._poster.aclose()

    def _authorization(self) -> dict[str, str]:
        if not self._bearer_file:
            return {}
        try:
            token = Path(self._bearer_file).read_text("utf-8").strip()
        except OSError as error:
            raise Retry(f"{self._bearer_file}: {error.strerror or error}") from error
        return {"Authorization": f"Bearer {token}"}
