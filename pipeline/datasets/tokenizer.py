"""Tokenizers from local files: Hugging Face's tokenizer.json, tiktoken's ranks and Mistral's tekken.json.

Nothing is ever fetched: a name of a model hub is no path.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import DataError, UserError

Encode = Callable[[Sequence[str]], list[list[int]]]

_KINDS = "give a folder with tokenizer.json, a tokenizer.json, a .tiktoken file or a tekken.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenizer:
    """Turns text into token ids."""

    path: Path
    digest: str
    """Of the files it was read from."""
    vocab_size: int
    """One more than the largest id."""
    end_of_text: int | None
    """Id of the token that its own files name as the end; None: they name none."""
    encode: Encode
    """Ids of several texts, without special tokens that the texts don't hold."""
    decode: Callable[[Sequence[int]], str]
    id_of: Callable[[str], int | None]
    """Id of a token by its text."""


def open_tokenizer(path: Path, *, pattern: str | None = None) -> Tokenizer:
    """Reads a tokenizer; `pattern` is the regular expression by which a .tiktoken file's text is cut first.

    Raises DataError naming the file that is no tokenizer, UserError when a package is missing.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise DataError(f"tokenizer: {file} is not a file; {_KINDS}")
    if file.suffix == ".tiktoken":
        return _open_ranks(file, pattern)
    document = _read_json(file)
    if isinstance(document.get("vocab"), list) and isinstance(document.get("config"), dict):
        return _open_tekken(file, document)
    return _open_hugging_face(file)


def read_tokenizer_config(path: Path) -> dict[str, Any]:
    """tokenizer_config.json beside a tokenizer; empty where there is none."""
    file = (path if path.is_dir() else path.parent) / "tokenizer_config.json"
    return _read_json(file) if file.is_file() else {}


def token_text(entry: object) -> str | None:
    """A special token as tokenizer_config.json writes it: a string, or an object with `content`."""
    found = entry.get("content") if isinstance(entry, dict) else entry
    return found if isinstance(found, str) else None


def require_package(name: str) -> Any:
    """Imports an optional package; raises UserError saying what to install."""
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(f"{name} is not installed; install himori[data]") from error


def _open_hugging_face(file: Path) -> Tokenizer:
    library = require_package("tokenizers")
    try:
        tokenizer = library.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare exceptions of its Rust side
        raise DataError(f"{file}: is no tokenizer ({_first_line(error)}); {_KINDS}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    end = token_text(read_tokenizer_config(file).get("eos_token"))

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [one.ids for one in tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    return Tokenizer(
        path=file,
        digest=_digest(file),
        vocab_size=max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        end_of_text=None if end is None else tokenizer.token_to_id(end),
        encode=encode,
        decode=lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False)),
        id_of=tokenizer.token_to_id,
    )


def _open_ranks(file: Path, pattern: str | None) -> Tokenizer:
    """Lines of a token in base64 and its rank; the end of text takes the next free id."""
    if pattern is None:
        raise UserError(
            f"--pattern: {file} holds ranks alone; give the regular expression that its text is cut by, "
            "or `gpt2` for that of GPT-2"
        )
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise DataError(f"{file}: line {number} is no token in base64 and a rank: {line[:60]!r}") from None
    if not ranks:
        raise DataError(f"{file}: is empty; {_KINDS}")
    specials = {"<|endoftext|>": max(ranks.values()) + 1}
    return _open_tiktoken(file, ranks, specials, _known_pattern(pattern), end="<|endoftext|>")


def _open_tekken(file: Path, document: dict[str, Any]) -> Tokenizer:
    """Special tokens come first, then as many of the vocabulary's as the configuration asks for."""
    config = document["config"]
    try:
        specials = int(config["default_num_special_tokens"])
        size = int(config["default_vocab_size"])
        named = {entry["token_str"]: int(entry["rank"]) for entry in document.get("special_tokens") or ()}
        ranks = {
            base64.b64decode(entry["token_bytes"]): int(entry["rank"]) + specials
            for entry in document["vocab"][: size - specials]
        }
        pattern = str(config["pattern"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file}: is no tekken.json ({type(error).__name__}: {error}); {_KINDS}") from error
    return _open_tiktoken(file, ranks, named or {"</s>": 2}, pattern, end="</s>")


def _open_tiktoken(
    file: Path, ranks: dict[bytes, int], specials: dict[str, int], pattern: str, *, end: str
) -> Tokenizer:
    library = require_package("tiktoken")
    try:
        encoding = library.Encoding(file.name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials)
    except Exception as error:  # as above: regular expressions are compiled by Rust
        raise DataError(f"{file}: can't be used ({_first_line(error)})") from error

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [encoding.encode(text, disallowed_special=()) for text in texts]

    return Tokenizer(
        path=file,
        digest=hashlib.blake2b(file.read_bytes() + pattern.encode(), digest_size=16).hexdigest(),
        vocab_size=max([*ranks.values(), *specials.values()]) + 1,
        end_of_text=specials.get(end),
        encode=encode,
        decode=lambda ids: str(encoding.decode(list(ids))),
        id_of=lambda token: specials.get(token, ranks.get(token.encode())),
    )


def _known_pattern(pattern: str) -> str:
    if pattern != "gpt2":
        return pattern
    return str(require_package("tiktoken_ext.openai_public").r50k_pat_str)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_bytes())
    except ValueError as error:
        raise DataError(f"{file}: is no JSON ({error}); {_KINDS}") from error
    if not isinstance(document, dict):
        raise DataError(f"{file}: is no JSON object; {_KINDS}")
    return document


def _digest(file: Path) -> str:
    return hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
