"""One device has many names; each fits one device or none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.sources.gpu.ownership.inventory import Inventory

UUIDS = [f"GPU-{n:08x}-1111-4abc-9def-0123456789ab" for n in (0x7F3E9A10, 0x7F3E9A11, 0x5A0C1B2D)]
CUT = UUIDS[2]
MIG = "MIG-11111111-2222-3333-4444-555555555555"
DEVICES = {
    UUIDS[0]: {"index": "0", "device": "nvidia0", "pci_bus_id": "00000000:18:00.0"},
    UUIDS[1]: {"index": "1", "device": "nvidia1", "pci_bus_id": "00000000:2A:00.0"},
    CUT: {"index": "2"},
    f"{CUT}/7": {"index": "2", "board": CUT, "mig_uuid": f"{MIG}, MIG-99999999-2222-3333-4444-555555555555"},
    f"{CUT}/13": {"index": "2", "board": CUT},
}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (UUIDS[0], UUIDS[0]), ("GPU-5a0c", CUT), ("GPU-7f3e9a10", UUIDS[0]), ("GPU-7F3E9A10", UUIDS[0]),
        (f"{UUIDS[1]}::3", UUIDS[1]), (f" {UUIDS[1]} ", UUIDS[1]),
        ("0", UUIDS[0]), ("2", CUT), ("nvidia1", UUIDS[1]), ("nvidia2/gi7", f"{CUT}/7"), ("nvidia1/vgpu0", UUIDS[1]),
        (MIG, f"{CUT}/7"), ("MIG-99999999-2222-3333-4444-555555555555", f"{CUT}/7"), (f"MIG-{CUT}/13/0", f"{CUT}/13"),
        ("0000:18:00.0", UUIDS[0]), ("00000000:2a:00.0", UUIDS[1]), (f"{CUT}/13", f"{CUT}/13"),
        ("GPU-7f3e", None), ("GPU-", None), ("3", None), ("-1", None), ("nvidia9", None), (f"MIG-{CUT}/9/0", None),
        ("MIG-00000000-2222-3333-4444-555555555555", None), ("0:1", None), ("", None), ("all", None), ("²", None),
    ],
)  # fmt: skip
def test_a_name_is_one_device_or_none(name, key):
    """An abbreviation that fits two devices, and a MIG index that only the driver can resolve, are none."""
    assert Inventory(DEVICES).key(name) == key


def test_boards_come_in_the_hosts_order_and_have_their_instances():
    inventory = Inventory(DEVICES)
    assert inventory.boards == tuple(UUIDS)
    assert set(inventory.instances(CUT)) == {f"{CUT}/7", f"{CUT}/13"}
    assert inventory.instances(UUIDS[0]) == ()


@given(st.text(max_size=60))
def test_any_text_is_a_known_device_or_none(name):
    key = Inventory(DEVICES).key(name)
    assert key is None or key in DEVICES
