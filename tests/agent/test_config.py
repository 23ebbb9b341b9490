"""Strict before start: what is wrong is named by file and key, and every default holds."""

import msgspec
import pytest

from gpuwatch.config import Config, ConfigError, Slo, check_rules, load, parse, with_engines
from gpuwatch.rules import load_rules

WRONG = {
    "a dialect that is none": (
        '[[engines]]\nurl = "http://x"\ndialect = "vlm"\n',
        "engines[0].dialect: no dialect `vlm`; there are",
    ),
    "not TOML": ("warm_up_s = 1\nlisten = = 2", "line 2"),
    "an unknown key": ("[slo]\nttft = 1", "slo.ttft: unknown key"),
    "an unknown table": ("[slos]", "slos: unknown key"),
    "a wrong type": ("warm_up_s = 'a'", "warm_up_s: expected `float`"),
    "an impossible value": ("[slo]\nttft_p95_s = 0", "slo.ttft_p95_s"),
    "an engine without a URL": ("[[engines]]\nname = 'a'", "engines[0].url: this key is required"),
    "a URL of another scheme": ("[[engines]]\nurl = 'unix:/x'", "engines[0].url: not an http(s) URL"),
    "a URL with a bad port": ("[[engines]]\nurl = 'http://a:99999'", "engines[0].url: not an http(s) URL"),
    "two engines of one name": ("[[engines]]\nurl = 'http://a'\n[[engines]]\nurl = 'http://a'", "used twice"),
    "a rate that is too high": ("[lanes]\nfast_hz = 50", "lanes.fast_hz: expected `float` <= 10"),
    "a local time": ("[[maintenance]]\nfrom_at = 2026-01-01T00:00:00\nuntil_at = 1", "maintenance[0].from_at: a date"),
    "a window upside down": ("[[maintenance]]\nfrom_at = 2\nuntil_at = 1", "maintenance[0].until_at: must be later"),
    "an unknown engine": (
        "[[engines]]\nurl = 'http://a'\nname = 'vllm'\n[[maintenance]]\nfrom_at = 1\nuntil_at = 2\nengine = 'vlm'",
        "maintenance[0].engine: no engine `vlm`; did you mean `vllm`?",
    ),
    "a misspelt scope": ("[scope]\nclutser = 'a'", "scope.clutser: unknown key; did you mean `cluster`?"),
    "an address without a port": ("listen = 'localhost'", "listen: not host:port"),
    "a sink without a URL": ("[webhook]", "webhook.url: this key is required"),
    "not UTF-8": (b"\xff\xfe", "not UTF-8"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_is_refused_with_file_and_key(tmp_path, what):
    """One message, one place to look at."""
    text, says = WRONG[what]
    path = tmp_path / "gpuwatch.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as error:
        load(path)
    assert str(error.value).startswith(f"{path}: ")
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"rules": {"overlod": {}}}, "rules.overlod: no such rule; did you mean `overload`?"),
        ({"rules": {"overload": {"servce_s": 1}}}, "rules.overload.servce_s: unknown key; did you mean `service_s`?"),
        ({"rules": {"overload": {"service_s": "x"}}}, "rules.overload.service_s: expected `float`"),
        ({"muted": ["nothing"]}, "muted: no rule `nothing`"),
    ],
)
def test_rule_settings_are_checked_against_the_rules(raw, says):
    """Parameters are those of the rule, by name and type."""
    with pytest.raises(ConfigError) as error:
        check_rules(parse(raw), load_rules(), "f.toml")
    assert str(error.value) == f"f.toml: {says}" or says in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    """No traceback for a typing error."""
    with pytest.raises(ConfigError, match=r"nix\.toml: No such file"):
        load(tmp_path / "nix.toml")


def test_every_default_survives_a_capsule():
    """The configuration in a capsule's header is the one that judged."""
    assert load(None) == Config()
    assert msgspec.json.decode(msgspec.json.encode(Config()), type=Config) == Config()


def test_engines_are_named_and_slos_are_chosen_by_model():
    """A default name is host:port; a model's own SLO wins."""
    config = parse(
        {
            "engines": [{"url": "http://10.0.0.1:8000"}],
            "slo": {"ttft_p95_s": 2.0},
            "slo_by_model": {"70b": {"ttft_p95_s": 5.0}},
        }
    )
    assert config.engines[0].name == "10.0.0.1:8000"
    assert config.slo_for("70b").ttft_p95_s == 5.0
    assert config.slo_for("other") == Slo(ttft_p95_s=2.0)
    more = with_engines(config, ["http://b:1", "http://10.0.0.1:8000"])
    assert [e.name for e in more.engines] == ["10.0.0.1:8000", "b:1"]


def test_a_date_time_with_an_offset_is_unix_seconds(tmp_path):
    """TOML date-times are read where seconds are wanted."""
    path = tmp_path / "c.toml"
    path.write_text("[[maintenance]]\nfrom_at = 2026-01-01T01:00:00+01:00\nuntil_at = 2026-01-01T01:00:00Z\n")
    (window,) = load(path).maintenance
    assert (window.from_at, window.until_at) == (1767225600.0, 1767229200.0)


def test_rings_are_looked_for_where_their_writers_put_them(monkeypatch):
    monkeypatch.delenv("GPUWATCH_RING_DIR", raising=False)
    assert str(Config().ring_path) == "/dev/shm/gpuwatch"
    monkeypatch.setenv("GPUWATCH_RING_DIR", "/run/rings")
    assert str(Config().ring_path) == "/run/rings"
    assert str(Config(ring_dir="/elsewhere").ring_path) == "/elsewhere"
