"""Conversations for supervised fine-tuning: which tokens they are, and which of them the assistant says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.datasets.packing import pack
from pipeline.datasets.samples import Parts, Sample
from pipeline.datasets.tokenizer import read_tokenizer_config, require_package, token_text
from pipeline.errors import DataError

DEFAULT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""For tokenizers that bring no template of their own."""

_ROLES = ("system", "developer", "user", "assistant", "tool")

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """Tokens of one conversation, and which of them are the assistant's."""

    tokens: npt.NDArray[np.int64]
    said: npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedConversations:
    """Conversations packed into rows of one length."""

    name: str
    conversations: tuple[Conversation, ...]
    rows: tuple[tuple[int, ...], ...]
    """Conversations of each sample, by their numbers."""
    length: int
    digest: bytes

    @property
    def samples(self) -> int:
        """How many there are."""
        return len(self.rows)

    def read(self, sample: int) -> Sample:
        """A row, filled up with tokens that nobody learns and that belong to no conversation."""
        tokens = np.zeros(self.length + 1, np.int64)
        said = np.zeros(self.length + 1, bool)
        documents = np.full(self.length + 1, len(self.rows[sample]), np.int64)
        begin = 0
        for order, number in enumerate(self.rows[sample]):
            one = self.conversations[number]
            end = begin + len(one.tokens)
            tokens[begin:end], said[begin:end], documents[begin:end] = one.tokens, one.said, order
            said[begin] = False  # nothing of the same conversation stands before it
            begin = end
        return Sample(tokens=tokens, documents=documents[:-1], targets=said[1:])


@dataclass(frozen=True, slots=True)
class ChatEncoder:
    """Applies a chat template and a tokenizer."""

    tokenizer: Any
    template: Any
    specials: Mapping[str, str]

    def encode(self, messages: Messages) -> Conversation:
        """Tokens of a conversation; raises ValueError when the template can't tell which words are the assistant's."""
        text = self._render(messages)
        spans = [self._span(messages, turn, text) for turn, one in enumerate(messages) if one["role"] == "assistant"]
        encoded = self.tokenizer.encode(text, add_special_tokens=False)
        starts = np.array([start for start, _ in encoded.offsets], dtype=np.int64)
        said = np.zeros(len(starts), bool)
        for begin, end in spans:
            said |= (starts >= begin) & (starts < end)
        return Conversation(tokens=np.array(encoded.ids, dtype=np.int64), said=said)

    def _span(self, messages: Messages, turn: int, text: str) -> tuple[int, int]:
        """Where in the text the assistant answers: from the prompt to the end of the turn."""
        before = self._render(messages[:turn], prompt=True)
        after = self._render(messages[: turn + 1])
        if not (text.startswith(before) and text.startswith(after) and len(after) > len(before)):
            raise ValueError(f"the chat template rewrites what stands before message {turn + 1}")
        return len(before), len(after)

    def _render(self, messages: Messages, *, prompt: bool = False) -> str:
        return str(self.template.render(messages=messages, add_generation_prompt=prompt, **self.specials))


def open_encoder(folder: Path) -> ChatEncoder:
    """The tokenizer and chat template of a folder; raises DataError naming the file that is no good."""
    library, jinja = require_package("tokenizers"), require_package("jinja2.sandbox")
    file = folder / "tokenizer.json" if folder.is_dir() else folder
    try:
        tokenizer = library.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare exceptions of its Rust side
        raise DataError(f"data.tokenizer: {file} is no tokenizer ({str(error).splitlines()[0]})") from error
    config = read_tokenizer_config(folder)
    environment = jinja.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _raise
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    try:
        template = environment.from_string(_template_of(config))
    except require_package("jinja2").TemplateError as error:
        raise DataError(f"{folder / 'tokenizer_config.json'}: chat_template can't be read ({error})") from error
    specials = {name: token_text(config.get(name)) or "" for name in ("bos_token", "eos_token", "pad_token")}
    return ChatEncoder(tokenizer, template, specials)


def _template_of(config: Mapping[str, Any]) -> str:
    found = config.get("chat_template")
    if isinstance(found, list):  # several, by name
        found = next((one["template"] for one in found if one.get("name") == "default"), None)
    return found if isinstance(found, str) else DEFAULT_TEMPLATE


def _raise(message: str) -> None:
    raise ValueError(message)


def open_conversations(path: Path, tokenizer: Path, held_out: float, length: int, vocab_size: int) -> Parts:
    """Reads, tokenizes and packs a file of conversations; the last `held_out` of them are kept apart.

    Raises DataError naming the line that is no conversation.
    """
    encoder = open_encoder(tokenizer)
    content = _read(path)
    found = tuple(_encoded(path, content, encoder, vocab_size))
    digest = hashlib.blake2b(content + repr((held_out, length)).encode(), digest_size=16).digest()
    kept = len(found) - round(len(found) * held_out)
    train = _packed(path, found[:kept], length, digest + b"train", "train on")
    rest = _packed(path, found[kept:], length, digest + b"held out", "hold out") if held_out else None
    return Parts(train=train, held_out=rest)


def _packed(
    path: Path, conversations: tuple[Conversation, ...], length: int, digest: bytes, what: str
) -> PackedConversations:
    # One that is longer than a sample is cut: its beginning is worth more than nothing.
    fitting = tuple(Conversation(tokens=one.tokens[: length + 1], said=one.said[: length + 1]) for one in conversations)
    useful = tuple(one for one in fitting if one.said[1:].any())
    if not useful:
        raise DataError(f"{path}: no conversation to {what} has an answer within recipe.sequence_length {length}")
    rows = pack([len(one.tokens) for one in useful], room=length + 1)
    return PackedConversations(
        name=str(path), conversations=useful, rows=tuple(map(tuple, rows)), length=length, digest=digest
    )


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"data.path: {path} can't be read ({error.strerror}); give a .jsonl file") from error
    if not content.strip():
        raise DataError(f"data.path: {path} is empty; give a JSON object with `messages` a line")
    return content


def _encoded(path: Path, content: bytes, encoder: ChatEncoder, vocab_size: int) -> Iterator[Conversation]:
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            one = encoder.encode(_messages(line))
        except Exception as error:  # templates are programs: they raise what they like
            raise DataError(f"{path}: line {number}: {_one_line(error)}") from error
        if len(one.tokens) and (largest := int(one.tokens.max())) >= vocab_size:
            raise DataError(
                f"{path}: line {number}: token id {largest}, model.vocab_size is {vocab_size}; "
                "data.tokenizer is not this model's"
            )
        yield one


def _messages(line: bytes) -> Messages:
    document = json.loads(line.decode())
    messages = document.get("messages") if isinstance(document, dict) else None
    if not isinstance(messages, list) or not messages:
        raise ValueError('no list `messages`; a line is {"messages": [{"role": …, "content": …}, …]}')
    for place, one in enumerate(messages, start=1):
        if not isinstance(one, dict) or one.get("role") not in _ROLES or not isinstance(one.get("content"), str):
            raise ValueError(f"message {place} has no role out of {', '.join(_ROLES)} and a text `content`")
    return messages


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
