"""Writes the capsules of the net anew (`python -m tests.net.make_capsules`).

They were recorded once, by the version that began the net: later versions open them, or refuse them in one sentence.
"""

from __future__ import annotations

from tests.net.inputs import CAPSULES, stream_of
from tests.net.product import calls_of_capture, write_capsule

# name · scenario · sources · seconds that are in the snapshot only · seconds that are recorded
RECORDED = (
    ("engine_hang-defaults", "engine_hang", "defaults", 0, 200),
    ("admission_deferred-full", "admission_deferred", "full", 0, 120),
    ("traffic_surge-defaults-with-snapshot", "traffic_surge", "defaults", 110, 240),
)


def main() -> None:
    """Write all of them."""
    CAPSULES.mkdir(exist_ok=True)
    for name, stem, sources, from_s, until_s in RECORDED:
        calls = list(calls_of_capture(stream_of(stem, "h100", "1", sources)))
        path = write_capsule(CAPSULES / f"{name}.capsule", calls[:until_s], from_s=from_s)
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
