"""Tokenizers and text streams: what goes in comes out, and stop strings end a text exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_shim.model.tokens import PLACEHOLDER, CharTokenizer, FolderTokenizer, TextStream

CHARS = CharTokenizer(512)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    """A real byte-level BPE tokenizer without merges: every non-ASCII character is several tokens."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return FolderTokenizer(path)


def test_every_tiny_token_is_one_printable_character_and_no_two_are_alike():
    """The 512 tokens of the tiny vocabulary are visible and distinct."""
    characters = [CHARS.decode([index]) for index in range(512)]
    assert all(len(character) == 1 and character.isprintable() for character in characters)
    assert len(set(characters)) == 512


def test_ascii_survives_the_tiny_tokenizer_and_the_rest_is_replaced():
    """ASCII text round-trips one token a character; line breaks and emoji become the placeholder."""
    text = "".join(chr(code) for code in range(32, 127))
    assert CHARS.decode(CHARS.encode(text)) == text
    assert CHARS.decode(CHARS.encode("a\n🚀b")) == f"a{PLACEHOLDER}{PLACEHOLDER}b"


def feed(stream: TextStream, ids: list[int]) -> list[str]:
    return [*(stream.add(token) for token in ids), stream.flush()]


@given(text=st.text(alphabet="ab€🚀é ", max_size=30))
def test_streamed_text_is_the_text(byte_level, text):
    """Pieces of a stream add up to the whole, and none shows half a character."""
    pieces = feed(TextStream(byte_level), byte_level.encode(text))
    assert "".join(pieces) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@given(
    text=st.text(alphabet="abc", max_size=40),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_cut_where_the_first_one_begins(text, stops):
    """Whatever the pieces, the shown text ends before the stop string that completes first."""
    stream = TextStream(CHARS, tuple(stops))
    shown = "".join(feed(stream, CHARS.encode(text)))
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert stream.stopped == bool(ends)
    if not ends:
        assert shown == text
        return
    first = min(ends)
    assert shown == text[: min(text[:first].find(stop) for stop in stops if stop in text[:first])]


def test_a_beginning_of_a_stop_string_is_held_back():
    """`</e` is not shown while it may become `</end>`, and comes out when it does not."""
    stream = TextStream(CHARS, ("</end>",))
    assert [stream.add(token) for token in CHARS.encode("a</ex")] == ["a", "", "", "", "</ex"]


def test_invalid_bytes_do_not_hold_the_stream_for_ever(byte_level):
    """Four continuation bytes in a row are shown as replacement characters instead of waiting for a start byte."""
    token = byte_level.encode("€")[1]
    stream = TextStream(byte_level)
    assert "".join(stream.add(token) for _ in range(6)).startswith("\N{REPLACEMENT CHARACTER}" * 4)


def test_a_broken_tokenizer_file_is_named(tmp_path):
    """A file that is no tokenizer is a ValueError with its path."""
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": 7}')
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        FolderTokenizer(path)
