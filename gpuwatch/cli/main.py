"""The command line: one verb each, no logic. Heavy things are imported by the command that needs them.

Exit codes: 0 done, whatever the verdict; 1 only with --check, where an incident was found; 2 wrong usage or input, with a
message that names the file, line or key.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from .. import __version__

if TYPE_CHECKING:
    from ..config import Config, Role
    from ..model import Verdict


class Unusable(click.ClickException):
    """Wrong input: said on stderr, exit code 2."""

    exit_code = 2


@contextmanager
def bad_input(*also: type[Exception]) -> Iterator[None]:
    """Errors that name a file, line or key become a message and exit code 2; so do `also`, those of one command."""
    from ..config import ConfigError
    from ..recording.capsule import CapsuleError
    from ..sinks.store import StoreError
    from ..sources.files.capture import CaptureError

    try:
        yield
    except (CapsuleError, ConfigError, CaptureError, StoreError) as error:
        raise Unusable(str(error)) from error
    except also as error:
        raise Unusable(str(error)) from error
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise Unusable(f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")) from error


_config_file = click.option(
    "--config", "config_path", type=click.Path(dir_okay=False), help="A gpuwatch.toml; every key has a default."
)
_state_dir = click.option("--state-dir", type=click.Path(file_okay=False), help="Where the agent keeps its state.")
_json = click.option("--json", "as_json", is_flag=True, help="Machine-readable output, and nothing else, on stdout.")
_check = click.option("--check", is_flag=True, help="Exit with 1 where an incident was found (info does not count).")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gpuwatch")
def main() -> None:
    """Says why an LLM inference service is slow: the incident, the evidence, what to do, what not to do."""


@main.command()
@click.argument("scenario", default="batch_thrashing")
@click.option(
    "--device", default="torch", show_default=True, help="torch (real time) or a modelled device such as h100."
)
@click.option("--seed", default=1, show_default=True, help="Seed of the load.")
@click.option("--out", "out_dir", default="gpuwatch-demo", show_default=True, help="Folder for the files it leaves.")
@_config_file
@_json
def demo(scenario: str, device: str, seed: int, out_dir: str, config_path: str | None, as_json: bool) -> None:
    """Play a scenario on the bundled engine and diagnose it: engine, load, agent, verdict, postmortem."""
    from ..demo import run_demo

    sys.exit(run_demo(scenario, device, seed, out_dir, as_json, _load(config_path)))


@main.command()
@_config_file
@click.option("--engine", "engines", multiple=True, metavar="URL", help="An engine to watch; may be given again.")
@_state_dir
@click.option(
    "--role", type=click.Choice(["all", "engine", "node"]), help="Beside one engine, once a node, or both; default all."
)
@click.option("--log-level", default="info", show_default=True, type=click.Choice(["debug", "info", "warning"]))
def run(
    config_path: str | None, engines: tuple[str, ...], state_dir: str | None, role: Role | None, log_level: str
) -> None:
    """Run the agent: watch engines, name incidents, tell the sinks, serve /metrics and the API."""
    import asyncio

    from ..agent.logging_setup import set_up

    config = _load(config_path, engines, state_dir, role)
    set_up(log_level)
    with bad_input():
        from ..agent.agent import main as run_agent

        asyncio.run(run_agent(config))


@main.command()
@click.argument("sources", nargs=-1, metavar="SOURCE...")
@click.option("--prometheus", "url", metavar="URL", help="Ask an existing Prometheus instead; needs --from.")
@click.option("--from", "since", metavar="T", help="Begin: -2h, now-15m, unix seconds or ISO 8601.")
@click.option("--to", "until", default="now", show_default=True, metavar="T", help="End.")
@click.option("--match", metavar="LABELS", help='Only engines with these labels, e.g. \'namespace="x",pod=~"a.*"\'.')
@click.option("--step", "step_s", type=click.FloatRange(1, 3600), help="Seconds between values; default: as scraped.")
@click.option("--auth-file", help="File with the token, or with header lines (Name: value), to send to Prometheus.")
@_config_file
@_check
@_json
def diagnose(
    sources: tuple[str, ...], url: str | None, since: str | None, until: str, match: str | None, step_s: float | None,
    auth_file: str | None, config_path: str | None, check: bool, as_json: bool,
) -> None:  # fmt: skip
    """Diagnose whatever there is: logs, pages, folders of pages, captures, capsules, - for stdin, or a Prometheus.

    Several sources are the material of one incident. What each is, its content says.
    """
    from ..clock import WallClock
    from ..diagnose import Asked, MaterialError, ask_prometheus, examine, text
    from ..diagnose.progress import Bar

    if bool(sources) == bool(url):
        raise click.UsageError("give SOURCE..., or --prometheus URL with --from" if not sources else "either, not both")
    config = _load(config_path)
    clock = WallClock()
    started = clock.now()
    bar = Bar(sys.stderr, lambda: clock.now() - started)
    with bad_input(MaterialError):
        if url:
            asked = Asked(url, since or "", until, match or "", step_s, auth_file or "")
            answer = ask_prometheus(asked, config, started, bar)
        else:
            answer = examine(sources, config, bar)
    bar.clear()
    if as_json:
        _say(answer.notes)
    else:
        click.echo(text(answer), nl=False)
    _tell(answer.verdict, as_json, check, silent=not as_json)


@main.command()
@click.argument("capsule")
@_check
@_json
def replay(capsule: str, check: bool, as_json: bool) -> None:
    """Execute a capsule again, tick by tick: the same verdict."""
    from ..diagnose import replay_capsule, transition_line

    with bad_input():
        verdict, notes = replay_capsule(capsule, lambda t: None if as_json else click.echo(transition_line(t)))
    _say(notes)
    _tell(verdict, as_json, check)


@main.command()
@click.argument("incident", required=False)
@_config_file
@_state_dir
@click.option("--open", "only_open", is_flag=True, help="Only those that are open.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="At most this many.")
@_json
def incidents(
    incident: str | None, config_path: str | None, state_dir: str | None, only_open: bool, limit: int, as_json: bool
) -> None:
    """List what was found, newest first; with an ID (or its beginning), all that is known of one."""
    from .incidents import listing, one

    config = _load(config_path, (), state_dir)
    with bad_input():
        if incident is None:
            click.echo(listing(config, limit, only_open, as_json), nl=False)
        else:
            click.echo(one(config, incident, as_json), nl=False)


@main.command()
@click.argument("incident_or_capsule", metavar="ID|CAPSULE")
@click.option("--out", default="postmortem.html", show_default=True, help="Where to write: .html or .md.")
@_config_file
@_state_dir
def postmortem(incident_or_capsule: str, out: str, config_path: str | None, state_dir: str | None) -> None:
    """Write the postmortem of an incident (ID) or of a capsule (file)."""
    from ..report import NoSuchIncidentError
    from .incidents import postmortem as written

    config = _load(config_path, (), state_dir)
    with bad_input():
        try:
            click.echo(written(config, incident_or_capsule, out))
        except NoSuchIncidentError as error:
            raise Unusable(f"{incident_or_capsule}: {error}") from error


@main.command()
@click.argument("stem", required=False)
@_json
def rules(stem: str | None, as_json: bool) -> None:
    """List the incident classes; with a STEM, what one needs, its parameters and its neighbours."""
    from .rules import show

    try:
        click.echo(show(stem, as_json), nl=False)
    except KeyError as error:
        raise Unusable(str(error.args[0])) from error


@main.command()
@_config_file
@click.option("--engine", "engines", multiple=True, metavar="URL", help="An engine to look at; may be given again.")
@click.option("--seconds", default=3, show_default=True, type=click.IntRange(1, 60), help="How long to look.")
@click.option("--role", type=click.Choice(["all", "engine", "node"]), help="Look as an agent with this role would.")
@click.option("--print-counters", is_flag=True, help="Print the counters file for dcgm-exporter, and nothing else.")
@_json
def doctor(
    config_path: str | None,
    engines: tuple[str, ...],
    seconds: int,
    role: Role | None,
    print_counters: bool,
    as_json: bool,
) -> None:
    """Say what is reachable, what engine it is, which rules are blind, and the one change that would help each."""
    import asyncio

    if print_counters:
        from ..doctor.dcgm_counters import csv

        click.echo(csv(), nl=False)
        return
    from ..agent.logging_setup import quiet
    from ..doctor import checkup

    config = _load(config_path, engines, role=role)
    if not config.engines and config.role != "node":
        raise click.UsageError("no engine to look at: give --engine URL or --config FILE")
    with bad_input(), quiet():  # the report says what the log would
        report = asyncio.run(checkup.examine(config, seconds))
    click.echo(checkup.to_json(report) if as_json else checkup.text(report), nl=False)


@main.command()
@click.argument("pid", type=click.IntRange(1))
@click.option("--record", "seconds", type=click.IntRange(1, 60), help="Sample for so long, into a speedscope file.")
@click.option("--out", default="stacks.speedscope.json", show_default=True, help="Where --record writes.")
@click.option("--native", is_flag=True, help="C frames too; the process is stopped for some 100 ms at each look.")
@_json
def stacks(pid: int, seconds: int | None, out: str, native: bool, as_json: bool) -> None:
    """Say where the Python threads of a process stand: three dumps, half a second apart. Locals are never read."""
    import asyncio

    from ..stacks import look, record
    from ..stacks.spy import SpyError

    with bad_input(SpyError):
        if seconds is not None:
            size = asyncio.run(record(pid, seconds, out, native=native))
            click.echo(f"{out}: {size} bytes; open it at https://www.speedscope.app", err=as_json)
            return
        found = asyncio.run(look(pid, native=native))
        if found.unavailable:
            raise Unusable(f"process {pid}: {found.unavailable}")
    import msgspec

    click.echo(msgspec.json.encode(found).decode() if as_json else found.text(), nl=as_json)


@main.command()
@click.argument("trace", required=False)
@click.option("--engine", "url", metavar="URL", help="Have an engine profile itself instead, for --seconds.")
@click.option("--seconds", default=2, show_default=True, type=click.IntRange(1, 60), help="How long.")
@click.option("--kernels", default=10, show_default=True, type=click.IntRange(0, 200), help="How many to name.")
@_json
def profile(trace: str | None, url: str | None, seconds: int, kernels: int, as_json: bool) -> None:
    """Summarise a torch profiler TRACE (.json, .json.gz): which classes of kernels take the time, what that proves."""
    import msgspec

    from .. import profiles
    from ..profiles.engine import EngineProfileError, profile_engine

    if bool(trace) == bool(url):
        raise click.UsageError("give TRACE, or --engine URL")
    with bad_input(profiles.TraceError, EngineProfileError):
        if url:
            click.echo(profile_engine(url, seconds), err=as_json)
            return
        devices = profiles.summarise(profiles.read_trace(str(trace)), kernels)
    found = profiles.readings(devices)
    if as_json:
        click.echo(msgspec.json.encode({"devices": devices, "readings": found}).decode())
    else:
        click.echo(profiles.render(devices, found), nl=False)


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the shell's completion script: eval "$(gpuwatch completion bash)"."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None  # click ships these three
    click.echo(found(main, {}, "gpuwatch", "_GPUWATCH_COMPLETE").source())


def _load(
    path: str | None, engines: tuple[str, ...] = (), state_dir: str | None = None, role: Role | None = None
) -> Config:
    """The configuration with what the command line says on top, checked against the rules."""
    from msgspec.structs import replace

    from ..agent.roles import in_role
    from ..config import check_rules, load, with_engines
    from ..rules import load_rules

    with bad_input():
        config = in_role(with_engines(load(path), engines), role, os.environ)
        if config.rules or config.muted:
            check_rules(config, load_rules(), str(path))
        return replace(config, state_dir=state_dir) if state_dir else config


def _tell(verdict: Verdict, as_json: bool, check: bool, *, silent: bool = False) -> None:
    from ..incidents.verdict import text, to_json

    if not silent:
        click.echo(to_json(verdict).decode() + "\n" if as_json else text(verdict), nl=False)
    if check and any(incident.severity != "info" for incident in verdict.incidents):
        sys.exit(1)


def _say(notes: Any) -> None:
    """What qualifies an answer goes to stderr: stdout is the answer."""
    for note in notes:
        click.echo(f"note: {note}", err=True)
