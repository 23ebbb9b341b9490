"""The house rules that a linter does not know: size, names, time, layers, words in the docs."""

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from tests.metric_names import REPOSITORY
from tests.test_complete import tracked

FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc", "lib", "core"}
LONGEST_MODULE = 500
MEDIAN_MODULE = 150
LONGEST_TEST = 600

MAY_READ_THE_CLOCK = re.compile(
    r"^(gpuwatch/clock\.py"
    r"|gpuwatch/(cli|demo)/"
    r"|engine_shim/(clock|cli|serving|http/(server|worker))\.py"
    r"|vllm_plugin/gpuwatch_vllm/plugin\.py"
    r"|tests/|scripts/)"
)
"""Clock modules and the edges where a program meets its user; everything else is told the time."""

CLOCK_CALLS = {
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "sleep"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("date", "today"),
}

PRODUCT = sorted(
    p for p in tracked("gpuwatch/*.py", "engine_shim/*.py", "dashboards/*.py", "scripts/*.py", "vllm_plugin/*.py")
)
TESTS = sorted(tracked("tests/*.py"))


def name_of(file: Path) -> str:
    return file.relative_to(REPOSITORY).as_posix()


def lines(file: Path) -> int:
    return len(file.read_text().splitlines())


def test_no_module_has_outgrown_its_room():
    assert {name_of(f): lines(f) for f in PRODUCT if lines(f) > LONGEST_MODULE} == {}
    assert {name_of(f): lines(f) for f in TESTS if lines(f) > LONGEST_TEST} == {}


def test_most_modules_are_small():
    sizes = [lines(f) for f in PRODUCT if f.name != "__init__.py"]
    assert statistics.median(sizes) <= MEDIAN_MODULE


def test_every_module_is_named_for_what_it_holds():
    assert [
        name_of(f) for f in [*PRODUCT, *TESTS] if f.stem in FORBIDDEN_NAMES or f.parent.name in FORBIDDEN_NAMES
    ] == []


def test_every_module_says_what_it_is():
    assert [name_of(f) for f in [*PRODUCT, *TESTS] if f.stat().st_size and not ast.get_docstring(parsed(f))] == []


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(), filename=str(file))


def clock_calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls that read or wait for the wall clock: `time.time()`, `datetime.now()`, `asyncio.sleep` excepted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            last = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if (last, node.func.attr) in CLOCK_CALLS:
                yield node


def test_time_is_an_argument():
    found = [f"{name_of(f)}:{call.lineno}" for f in PRODUCT for call in clock_calls(parsed(f))]
    assert [where for where in found if not MAY_READ_THE_CLOCK.match(where)] == []


def test_no_test_sleeps():
    """A test drives time itself or waits for an event with a deadline."""
    sleeps = [
        f"{name_of(f)}:{call.lineno}"
        for f in TESTS
        for call in clock_calls(parsed(f))
        if isinstance(call.func, ast.Attribute) and call.func.attr == "sleep"
    ]
    assert sleeps == []


def test_the_check_on_clocks_can_fail():
    source = "import time, datetime\ntime.sleep(1)\ndatetime.datetime.now()\nclock.time()\n"
    assert [call.lineno for call in clock_calls(ast.parse(source))] == [2, 3]


def test_no_error_is_swallowed():
    """A handler that does nothing must name the expected error and say beside it why nothing is the answer."""
    found = [
        f"{name_of(f)}:{node.lineno}"
        for f in PRODUCT
        for node in ast.walk(parsed(f))
        if isinstance(node, ast.ExceptHandler) and is_silent(node, f.read_text().splitlines())
    ]
    assert found == []


def is_silent(handler: ast.ExceptHandler, source: list[str]) -> bool:
    """Does nothing, and catches everything or does not say why."""
    if len(handler.body) != 1 or not isinstance(handler.body[0], ast.Pass):
        return False
    caught = getattr(handler.type, "id", "")
    reason = any("#" in line for line in source[handler.lineno - 1 : handler.body[0].lineno])
    return handler.type is None or caught in {"Exception", "BaseException"} or not reason


def test_layers_hold():
    """The flow is one way, and agent and engine meet on the wire only."""
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint, "--no-cache"], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_tracked_file_knows_this_machine():
    """Paths of a developer's machine, a neighbouring folder or a home directory have no place in the project."""
    machine = re.compile(r"(?<![\w/.])/(?:home|root|Users)/\w|(?<![\w/.:])/work/|\.\./shared\b")
    for file in tracked("*"):
        if file.suffix in {".png", ".gz", ".woff2", ".safetensors"} or file == Path(__file__):
            continue
        found = machine.search(file.read_text(errors="replace"))
        assert found is None, f"{name_of(file)}: {found.group() if found else ''}"


def documentation() -> str:
    pages = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
    return "\n".join(page.read_text() for page in pages)


def test_every_command_and_option_is_documented():
    from gpuwatch.cli.main import main

    text = documentation()
    missing = []
    for name, command in commands(main):
        if f"gpuwatch {name}" not in text:
            missing.append(f"gpuwatch {name}")
        for option in command.params:
            long = [flag for flag in option.opts if flag.startswith("--")]
            missing += [f"gpuwatch {name} {flag}" for flag in long if flag not in text]
    assert missing == []


def commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every command of a click group with its whole name, groups of groups included."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


def test_every_configuration_key_is_documented():
    from gpuwatch.config import Config

    text = documentation()
    assert [key for key in configuration_keys(Config) if f"`{key}`" not in text and f"{key} =" not in text] == []


def configuration_keys(struct: Any) -> Iterator[str]:
    """Every key of a struct and of the structs within it."""
    for field in msgspec.structs.fields(struct):
        yield field.encode_name
        for kind in (field.type, *get_args(field.type)):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                yield from configuration_keys(kind)
