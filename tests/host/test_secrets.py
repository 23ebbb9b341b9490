"""No credential survives, wherever a hostile or careless command line puts it; what is harmless does."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.sources.changes.arguments import argument_facts
from gpuwatch.sources.changes.secrets import looks_secret, safe_text
from gpuwatch.sources.facts import canonical_facts

WORD = string.ascii_letters + string.digits
MIXED = st.text(WORD, min_size=14, max_size=40).map(lambda t: f"{t}7qZ")
PREFIXES = [
    "hf_",
    "sk-",
    "sk-proj-",
    "ghp_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "nvapi-",
    "gsk_",
    "AIza",
    "npm_",
    "eyJhbGci",
]
TOKENS = st.one_of(
    st.tuples(st.sampled_from(PREFIXES), MIXED).map("".join),
    st.text(string.ascii_uppercase + string.digits, min_size=12, max_size=20).map(lambda t: f"AKIA{t}"),
    st.tuples(MIXED, MIXED, MIXED).map(lambda parts: "eyJ" + ".".join(parts)),
)
"""Credentials that their form gives away."""
PASSWORDS = st.text(WORD + "!$%^*()_+~.", min_size=6, max_size=40)
"""Anything at all: only its place gives it away."""
SECRET_NAMES = st.sampled_from(
    ["api-key", "api_key", "apikey", "hf-token", "HF_TOKEN", "password", "db-passwd", "auth-token", "secret", "client-secret",
     "aws-secret-access-key", "ssl-keyfile-password", "cache-api-key", "prompt-auth-token", "admin-api-key", "bearer"],
)  # fmt: skip
HARMLESS = ["--port", "8000", "--model", "meta-llama/Llama-3.1-70B-Instruct", "--enable-prefix-caching"]


def leaked(secret: str, facts: dict[str, str]) -> bool:
    return any(secret in text for pair in facts.items() for text in pair)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.integers(0, len(HARMLESS)))
def test_a_token_is_hidden_wherever_it_stands(data, at):
    token = data.draw(TOKENS)
    shape = data.draw(
        st.sampled_from(
            [
                ["--note", "{}"], ["--note={}"], ["--{}"], ["{}"], ["--served-model-name", "{}"], ["--tokenizer={}"],
                ["--header", "Authorization: Bearer {}"], ["--otlp-traces-endpoint", "https://c.example:4318/v1?x={}"],
                ["--hf-overrides", '{{"a": {{"b": "{}"}}}}'], ["--kv-role", "a,{},b"], ["-m", "{}"], ["--x", "k={}"],
            ]
        )
    )  # fmt: skip
    words = [word.format(token) for word in shape]
    facts = argument_facts(["python", *HARMLESS[:at], *words, *HARMLESS[at:]])
    assert not leaked(token, facts)
    assert token not in safe_text(f"image x, {token} and more")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_anything_beside_the_name_of_a_credential_is_hidden(data):
    secret, name = data.draw(PASSWORDS), data.draw(SECRET_NAMES)
    shape = data.draw(
        st.sampled_from(
            [
                ["--{0}", "{1}"], ["--{0}={1}"], ["--{0}", "--{1}"], ["--{0}", "{1}", "{1}"], ["--env", "{0}={1}"],
                ["--note", '{{"{0}": "{1}"}}'], ["{0}={1}"], ["--otlp-traces-endpoint", "http://u:{1}@collector:4317/v1"],
                ["--login", "user:{1}"], ["-p", "{1}"], ["--api-k", "{1}x"],
            ]
        )
    )  # fmt: skip
    words = [word.format(name, secret) for word in shape]
    facts = argument_facts(["python", *words])
    kept = [text for text in facts.values() if text not in ("true", "8000")]
    assert not any(secret in text for text in kept if not text.startswith("#")), facts
    assert not any(secret.lower() in fact and len(secret) > 8 for fact in facts), facts


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=300), max_size=40))
def test_any_command_line_is_read_within_bounds(words):
    facts = argument_facts(["x", *words])
    assert len(facts) <= 64
    assert all(len(name) <= 68 and len(value) <= 256 for name, value in facts.items())


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=2000))
def test_cleaning_twice_is_cleaning_once_and_never_longer_than_the_bound(text):
    once = safe_text(text)
    assert len(once) <= 256
    assert safe_text(once) == once or "<hidden" in once


def test_cleaning_takes_linear_time_on_the_worst_texts():
    for text in ("a" * 10**6, "a=" * 10**5, "://" * 10**5, "--" * 10**5, "sk-" * 10**5, "key:" * 10**5, '"' * 10**6):
        assert len(safe_text(text)) <= 256


def test_engines_options_stay_readable():
    facts = argument_facts(
        ["llama-server", "-m", "/models/Qwen2.5-Coder-32B-Instruct-Q4_K_M.gguf", "-c", "8192", "-ngl", "99", "--tensor-split",
         "3,1", "--revision", "0123456789abcdef0123456789abcdef01234567", "--max-model-len", "32k", "--kv-cache-dtype",
         "fp8_e4m3", "--gpu-memory-utilization", "0.9", "--compilation-config", '{"level": 3}', "--otlp-traces-endpoint",
         "http://collector:4317"]
    )  # fmt: skip
    assert facts.pop("arg_compilation_config").startswith("#")
    assert facts.pop("arg_tensor_split").startswith("#")
    assert facts == {
        "arg_model": "/models/Qwen2.5-Coder-32B-Instruct-Q4_K_M.gguf", "arg_ctx_size": "8192", "arg_n_gpu_layers": "99",
        "arg_revision": "0123456789abcdef0123456789abcdef01234567", "arg_max_model_len": "32k",
        "arg_kv_cache_dtype": "fp8_e4m3", "arg_gpu_memory_utilization": "0.9", "arg_otlp_traces_endpoint": "http://collector:4317",
    }  # fmt: skip


def test_a_fingerprint_tells_a_change_and_needs_the_key_to_be_tried():
    one, two = (argument_facts(["x", "--note", text], b"k") for text in ("blue", "green"))
    assert one != two
    assert one == argument_facts(["x", "--note", "blue"], b"k")
    assert one != argument_facts(["x", "--note", "blue"], b"other")


@pytest.mark.parametrize(
    "text",
    ["SGLang-0.5.10rc1", "vllm/vllm-openai:v0.11.0", "risk-analysis", "skip-tokens-1", "max_tokens: 512", "GPU-8f3c1b2a-0000",
     "meta-llama/Llama-3.1-70B-Instruct-AWQ-INT4", "sk-learn", "7.2.1+cu128", "rolled out by deploy", "hf://bucket/model"],
)  # fmt: skip
def test_words_that_are_no_credentials_are_kept(text):
    assert safe_text(text) == text


def test_facts_of_pages_are_cleaned_too():
    facts, _ = canonical_facts(
        {"version": "1", "endpoint": "http://me:pw@h/x", "hf_token": "x", "note": "hf_abcdefgh1234"}
    )
    assert facts == {"version": "1", "endpoint": "http://<hidden>@h/x", "hf_token": "<hidden>", "note": "<hidden>"}


def test_keys_in_disguise_are_known():
    assert all(
        map(looks_secret, ["cache_api_key", "prompt-auth-token", "accesskey", "X-Api-Key", "arg_hf_token", "pwd"])
    )
    assert not any(map(looks_secret, ["max_tokens", "kv_block_tokens", "tokenizer", "monkey", "keyed", "num_keys"]))
