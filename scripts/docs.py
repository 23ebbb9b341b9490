"""Writes the parts of the docs that repeat the code, so that they cannot drift: `python -m scripts.docs [--check]`.

A page holds blocks between `<!-- generated: NAME -->` and `<!-- end -->`; what stands between is replaced. The schema of
the verdict is a file of its own. A test runs the check. What a command printed (`<!-- output of: COMMAND -->` and a text
block; `· from: WORD` leaves out what comes before) is renewed by `--outputs` only: it takes minutes, and shows measurements.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuwatch.rules import Rule

REPOSITORY = Path(__file__).parents[1]
SCHEMA = REPOSITORY / "docs" / "verdict.schema.json"
_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_OUTPUT = re.compile(r"(<!-- output of: ([^>]*?)(?: · from: (\w+))? -->\n```text\n).*?(```)", re.DOTALL)


def classes() -> str:
    """The incident classes, from the rules."""
    from gpuwatch.rules import load_rules

    rows = (
        f"| [`{r.stem}`](runbooks/{r.stem}.md) | {r.family} | {_meaning(r)} | {', '.join(f'`{n}`' for n in r.needs)} |"
        for r in load_rules().values()
    )
    return _table(("class", "family", "what it means", "needs"), rows)


def _meaning(rule: Rule) -> str:
    """The first sentence of the rule's module, without its name."""
    said = sys.modules[rule.check.__module__].__doc__ or rule.title
    sentence = " ".join(said.split("\n\n")[0].split()).split(": ", 1)[-1]
    return _cell(sentence[0].upper() + sentence[1:].rstrip("."))


def signals() -> str:
    """The catalogue."""
    from gpuwatch.catalog import CATALOG

    rows = (f"| `gpuwatch_{s.name}` | {s.kind} | {s.unit} | {s.help} |" for s in CATALOG.values())
    return _table(("metric", "kind", "unit", "meaning"), rows)


def engine_settings() -> str:
    """The bundled engine's knobs with their defaults."""
    from engine_shim.cli import serve
    from engine_shim.settings.engine import EngineSettings

    said = {option.name: (option.help or "").split(" [default")[0] for option in serve.params}
    rows = (f"| `{f.name}` | `{json.dumps(f.default)}` | {said[f.name]} |" for f in dataclasses.fields(EngineSettings))
    return _table(("key", "default", "meaning"), rows)


def devices() -> str:
    """The bundled device profiles."""
    from engine_shim.devices.profiles import DEVICES

    head = (
        "`--device`", "product", "GB", "TB/s", "bf16 TFLOP/s", "fp8 TFLOP/s", "SMs", "GHz", "W", "idle W", "link GB/s",
        "`matmul_share`",
    )  # fmt: skip
    rows = (
        f"| `{d.name}` | {d.product} | {d.memory_bytes / 1e9:g} | {d.bandwidth_bytes_per_s / 1e12:g} "
        f"| {d.bf16_flops_per_s / 1e12:g} | {d.fp8_flops_per_s / 1e12:g} | {d.sm_count} | {d.max_sm_clock_hz / 1e9:g} "
        f"| {d.power_limit_watts:g} | {d.idle_power_watts:g} | {d.link_bytes_per_s / 1e9:g} | {d.matmul_share:g} |"
        for d in DEVICES.values()
    )
    return _table(head, rows)


def notices() -> str:
    """The kinds of notices that logs bring."""
    from gpuwatch.sources.logs.kinds import NOTICES

    return _table(("kind", "what it says"), (f"| `{kind}` | {_cell(text)} |" for kind, text in NOTICES.items()))


def agent_commands() -> str:
    """Every command of `gpuwatch` with its options."""
    from gpuwatch.cli.main import main

    return "\n".join(_command("gpuwatch", main))


def engine_commands() -> str:
    """Every command of the bundled engine with its options."""
    from engine_shim.cli import main

    return "\n".join(_command("python -m engine_shim", main))


def _command(name: str, command: Any) -> Iterator[str]:
    """A heading, the first paragraph of the help and a table of options; groups recurse."""
    import click

    context = click.Context(command, info_name=name)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None:
                yield from _command(f"{name} {child}", found)
        return
    arguments = " ".join(p.make_metavar(context) for p in command.params if isinstance(p, click.Argument))
    yield f"### `{name}{' ' + arguments if arguments else ''}`\n"
    yield (command.help or "").split("\n\n")[0].replace("\n", " ").strip() + "\n"
    options = [p.get_help_record(context) for p in command.params if isinstance(p, click.Option)]
    rows = [f"| `{_cell(flags)}` | {_cell(text)} |" for flags, text in filter(None, options)]
    if rows:
        yield _table(("option", "meaning"), iter(rows))


def _cell(text: str) -> str:
    """One line without a column's end in it."""
    return " ".join(text.split()).replace("|", "\\|")


def _table(head: tuple[str, ...], rows: Iterator[str]) -> str:
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *rows, ""])


def _dialects(part: str) -> str:
    """A part of what scripts/dialect_docs.py says."""
    from scripts import dialect_docs

    return {"pages": dialect_docs.pages, "matrix": dialect_docs.matrix, "names": dialect_docs.names}[part]()


BLOCKS: dict[str, Callable[[], str]] = {
    "engine_pages": lambda: _dialects("pages"),
    "engine_matrix": lambda: _dialects("matrix"),
    "engine_names": lambda: _dialects("names"),
    "classes": classes,
    "signals": signals,
    "engine_settings": engine_settings,
    "devices": devices,
    "notices": notices,
    "agent_commands": agent_commands,
    "engine_commands": engine_commands,
}


def verdict_schema() -> str:
    """The JSON schema of `--json`, of verdict.json and of /api/v1/verdict."""
    import msgspec

    from gpuwatch.model import Verdict

    return json.dumps(msgspec.json.schema(Verdict), indent=1, sort_keys=True) + "\n"


def current() -> dict[Path, str]:
    """What each generated page should say now, by path."""
    pages = {SCHEMA: verdict_schema()}
    for page in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]:
        text = page.read_text("utf-8")
        if _BLOCK.search(text):
            pages[page] = _BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]]()}{found[3]}", text)
    return pages


def outdated() -> list[Path]:
    """The pages that do not say what the code says."""
    return [page for page, text in current().items() if not page.exists() or page.read_text("utf-8") != text]


def refresh_outputs() -> None:
    """Run the commands whose output the README shows, and put what they print in its place."""
    programs = {
        "python": [sys.executable],
        # what the installed script does
        "gpuwatch": [sys.executable, "-c", "from gpuwatch.cli.main import main; main()"],
    }

    def ran(found: re.Match[str]) -> str:
        program, *arguments = found[2].split()
        done = subprocess.run(
            [*programs[program], *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        lines = done.stdout.rstrip().splitlines()
        first = next((i for i, line in enumerate(lines) if found[3] and line.startswith(found[3])), 0)
        return "\n".join([found[1].rstrip("\n"), *lines[first:], found[4]])

    readme = REPOSITORY / "README.md"
    readme.write_text(_OUTPUT.sub(ran, readme.read_text("utf-8")), "utf-8")


def main(arguments: list[str]) -> int:
    """Write, or with --check say what is outdated (exit code 1)."""
    if "--outputs" in arguments:
        refresh_outputs()
    stale = outdated()
    if "--check" in arguments:
        for page in stale:
            print(f"outdated: {page.relative_to(REPOSITORY)}; run python -m scripts.docs", file=sys.stderr)
        return int(bool(stale))
    pages = current()
    for page in stale:
        page.write_text(pages[page], "utf-8")
        print(f"wrote {page.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
