"""Chat templates of checkpoints: the prompt is what `transformers` makes of the same folder; bad ones are errors."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from engine_shim.http.protocol import ApiError, ServedModel, read_chat
from engine_shim.model.chat_template import ChatTemplate, OneLineATurn, UnfitConversationError, chat_form
from engine_shim.model.tokens import FolderTokenizer
from tests.shim.live_engine import live_engine

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('Only system, user and assistant may speak') }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
MARKED = """{% for m in messages %}{% if loop.index > 3 %}{% break %}{% endif %}{% if m.role == 'assistant' %}
{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}[{{ m.role }}]{{ m | tojson }}{% endif %}
{% endfor %}"""
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  Grüße 🚀 <|im_end|>\n"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": '{"a": "</b>"}'},
]
FORMS = {"chatml": CHATML, "llama": LLAMA, "marked": MARKED}
SPECIAL = {"bos_token": "<|begin|>", "eos_token": {"content": "<|eot_id|>", "lstrip": False, "__type": "AddedToken"}}


def now() -> float:
    return 1_700_000_000.0


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory) -> Path:
    """A byte-level tokenizer.json with special tokens, which begins every plain text with one."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|begin|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>"])
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", begin)]
    )
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def folder_with(tmp_path: Path, tokenizer_file: Path, config: dict) -> Path:
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def served(folder: Path) -> ServedModel:
    tokenizer = FolderTokenizer(folder / "tokenizer.json")
    return ServedModel("m", tokenizer, tokenizer.vocab_size, 4096, 4096, chat=chat_form(folder, now))


@pytest.mark.parametrize("place", ["config", "list", "file"])
@pytest.mark.parametrize("name", FORMS)
def test_the_prompt_is_what_transformers_makes_of_the_same_folder(name, place, tmp_path, tokenizer_file):
    """Token for token, special tokens once; wherever the folder keeps its template."""
    import transformers

    source = FORMS[name]
    config: dict = SPECIAL | {"tokenizer_class": "PreTrainedTokenizerFast"}
    if place == "config":
        config["chat_template"] = source
    elif place == "list":
        config["chat_template"] = [{"name": "rag", "template": "no"}, {"name": "default", "template": source}]
    else:
        config["chat_template"] = "not this one"
        (tmp_path / "chat_template.jinja").write_text(source)
    folder = folder_with(tmp_path, tokenizer_file, config)
    oracle = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    ask = read_chat(json.dumps({"messages": TALK, "max_tokens": 4}).encode(), served(folder))
    expected = oracle.apply_chat_template(TALK, add_generation_prompt=True, tokenize=False)
    assert expected
    assert ask.prompt == oracle.encode(expected, add_special_tokens=False)


def test_without_a_template_a_turn_is_a_line(tmp_path, tokenizer_file):
    """The form of models that have none; the tokenizer then adds its special tokens."""
    folder = folder_with(tmp_path, tokenizer_file, {})
    model = served(folder)
    assert isinstance(model.chat, OneLineATurn)
    ask = read_chat(json.dumps({"messages": TALK[2:3], "max_tokens": 4}).encode(), model)
    assert ask.prompt == model.tokenizer.encode("assistant: Yes.\nassistant:")
    assert isinstance(chat_form(None, now), OneLineATurn)


def test_a_template_s_own_objection_is_the_client_s_error(tmp_path, tokenizer_file):
    """`raise_exception` is a 400 with its words; a template that fails otherwise is one too."""
    folder = folder_with(tmp_path, tokenizer_file, SPECIAL | {"chat_template": LLAMA})
    with pytest.raises(ApiError, match="Only system, user and assistant may speak") as caught:
        read_chat(b'{"messages": [{"role": "tool", "content": "x"}]}', served(folder))
    assert (caught.value.status, caught.value.param) == (400, "messages")
    with pytest.raises(UnfitConversationError, match="UndefinedError"):
        ChatTemplate("{{ messages[0].nothing.at.all }}", {}, now).text(TALK)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source):
    """It neither reaches Python's internals nor changes what it is given nor counts for ever."""
    with pytest.raises(UnfitConversationError, match=r"SecurityError|OverflowError"):
        ChatTemplate(source, {}, now).text(TALK)


def test_a_template_knows_the_date_of_the_engine_s_clock():
    assert ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}, now).text(TALK) == "14 Nov 2023"


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ('{"chat_template": "{% for %}"}', r"tokenizer_config\.json: the chat template cannot be read: line 1"),
        ('{"chat_template": 3}', r"tokenizer_config\.json: chat_template is no text"),
        ("[]", r"tokenizer_config\.json: is not a JSON object"),
        ("{", r"tokenizer_config\.json: "),
    ],
)
def test_a_template_that_cannot_be_read_ends_at_the_start(config, complaint, tmp_path):
    """The message names the file."""
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(ValueError, match=complaint):
        chat_form(tmp_path, now)


def test_a_role_that_nobody_has_is_an_error_that_lists_the_roles():
    """As OpenAI's API says it: 400, the message's place, `invalid_value`; all real roles are let in."""
    with live_engine() as live, httpx.Client(base_url=live.url, timeout=30) as http:
        turns = [{"role": "user", "content": "a"}, {"role": "wizard", "content": "b"}]
        reply = http.post("/v1/chat/completions", json={"messages": turns, "max_tokens": 2})
        error = reply.json()["error"]
        assert (reply.status_code, error["param"], error["code"]) == (400, "messages[1].role", "invalid_value")
        assert "'wizard'" in error["message"]
        assert "'assistant'" in error["message"]
        roles = ("system", "developer", "user", "assistant", "tool", "function")
        turns = [{"role": role, "content": "a"} for role in roles]
        assert http.post("/v1/chat/completions", json={"messages": turns, "max_tokens": 2}).status_code == 200
