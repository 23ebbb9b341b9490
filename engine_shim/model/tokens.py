"""Text to token ids and back: a tokenizer of single printable characters for the tiny model, and any tokenizer.json.

The tiny vocabulary has 512 characters, all printable, so that each generated token is visible text and n characters of
a prompt are n tokens. Characters outside of it (line breaks too) are read as PLACEHOLDER: lossy, never refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

PLACEHOLDER = "_"  # id 0, also what modelled runs "generate"
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what a decoder shows for the first bytes of a character


class Tokenizer(Protocol):
    """Text to ids and back."""

    vocab_size: int

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, with those that a prompt begins and ends with, if the model has such and wants them added."""
        ...

    def decode(self, ids: list[int]) -> str:
        """The text that `ids` spell."""
        ...


def _printable(count: int) -> list[str]:
    found = [PLACEHOLDER]
    code = ord(" ")
    while len(found) < count:
        if chr(code).isprintable() and chr(code) != PLACEHOLDER:
            found.append(chr(code))
        code += 1
    return found


class CharTokenizer:
    """One printable character, one token. Id 0 stands for every character that is not in the vocabulary."""

    def __init__(self, vocab_size: int = 512) -> None:
        self.vocab_size = vocab_size
        self._characters = _printable(vocab_size)
        self._ids = {character: index for index, character in enumerate(self._characters)}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, one per character; there are no special ones."""
        ids = self._ids
        return [ids.get(character, 0) for character in text]

    def decode(self, ids: list[int]) -> str:
        """The characters of `ids`; ids beyond the vocabulary wrap around, as modelled runs have any vocabulary size."""
        characters, size = self._characters, self.vocab_size
        return "".join([characters[index % size] for index in ids])


class FolderTokenizer:
    """The tokenizer.json of a model folder, through the `tokenizers` library."""

    def __init__(self, path: Path) -> None:
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for whatever is wrong with the file
            raise ValueError(f"{path}: not a tokenizer.json: {error}") from error
        self.vocab_size: int = self._tokenizer.get_vocab_size()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, with the special tokens that the file prescribes unless the text has them already."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`, special tokens left out."""
        text: str = self._tokenizer.decode(ids)
        return text


class TextStream:
    """Turns tokens into text as they come, and ends it at a stop string.

    Text is held back while it may still change or must not be shown: an unfinished multi-byte character, or the
    beginning of a stop string.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._ids: list[int] = []
        self._context_from = 0  # tokens from here on are decoded together: neighbours decide about spaces
        self._emitted_until = 0  # tokens before this have become text
        self._held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """Take one token; returns the text that can be shown now, possibly none."""
        if self.stopped:
            return ""
        self._ids.append(token)
        before = self._tokenizer.decode(self._ids[self._context_from : self._emitted_until])
        after = self._tokenizer.decode(self._ids[self._context_from :])
        pending = len(self._ids) - self._emitted_until
        # Four bytes make a character at most; a replacement character that stays longer is really meant.
        if after.endswith(UNFINISHED) and pending < 4:
            return ""
        self._context_from, self._emitted_until = self._emitted_until, len(self._ids)
        return self._show(after[len(before) :])

    def flush(self) -> str:
        """The text held back so far; call once after the last token."""
        tail = "" if self.stopped else self._held
        if not self.stopped and self._emitted_until < len(self._ids):
            before = self._tokenizer.decode(self._ids[self._context_from : self._emitted_until])
            tail += self._tokenizer.decode(self._ids[self._context_from :])[len(before) :]
        self._held = ""
        return tail

    def _show(self, new: str) -> str:
        text = self._held + new
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        held = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper beginning of `stop` that `text` ends with."""
    longest = min(len(stop) - 1, len(text))
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
