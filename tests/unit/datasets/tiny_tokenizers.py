"""Tokenizers made on the spot."""

from __future__ import annotations

import base64
import json
from pathlib import Path

TEXTS = ["the cat sat on the mat", "a dog and a cat", "Ærlig talt, 火守 tends the fire\n"] * 3


def write_bpe(folder: Path, *, vocab_size: int = 400, template: str | None = None) -> Path:
    """A byte-level BPE of a few merges in Hugging Face's files, whose end of text is <|end|>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": {"content": "<|end|>"}} | ({"chat_template": template} if template else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_ranks(folder: Path) -> Path:
    """A .tiktoken file: all bytes and two merges."""
    tokens = [*(bytes([byte]) for byte in range(256)), b"th", b"the"]
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    (folder / "tiny.tiktoken").write_text("\n".join(lines))
    return folder / "tiny.tiktoken"


def write_tekken(folder: Path) -> Path:
    """A tekken.json of three special tokens and all bytes."""
    vocabulary = [
        {"rank": byte, "token_bytes": base64.b64encode(bytes([byte])).decode(), "token_str": None}
        for byte in range(256)
    ]
    config = {"pattern": r"\S+|\s+", "default_vocab_size": 259, "default_num_special_tokens": 3}
    (folder / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocabulary}))
    return folder / "tekken.json"
