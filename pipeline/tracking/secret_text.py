"""What looks like a secret in text that people write: by the name it is given and by its own shape."""

from __future__ import annotations

import re

NAME = re.compile(
    r"TOKEN(?!S|IZ)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API[-_ .]?KEY|PRIVATE[-_ .]?KEY|ACCESS[-_ .]?KEY", re.I
)
# Shapes that issuers document or that carry their meaning in themselves; a word that is only long is none.
_VALUES = {
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a URL with a password": r"[a-z][a-z0-9+.-]*://[^\s/@:]*:[^\s/@]+@",
    "an authorization header": r"\b(?:Bearer|Basic)\s+[A-Za-z0-9+/_.=-]{16,}",
    "a JSON web token": r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*",
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{20,}",
    "a GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,})",
    "a GitLab token": r"\bglpat-[\w-]{16,}",
    "an AWS key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "a Slack token": r"\bxox[abeprs]-[\w-]{10,}",
    "an API key": r"\b(?:sk|pk|rk)-[\w-]{20,}|\bAIza[\w-]{30,}|\bnvapi-[\w-]{20,}",
}
_ASSIGNED = re.compile(
    rf"(?<![A-Za-z0-9])[\w.-]*(?:{NAME.pattern})[\w.-]*[\"']?\s*(?:=|:(?!//))\s*[\"']?(?P<value>[^\s\"']{{6,}})", re.I
)


def find_secret(text: str) -> str | None:
    """What kind of secret a text seems to hold, in words that don't repeat it; None for none."""
    for kind, shape in _VALUES.items():
        if re.search(shape, text):
            return kind
    assigned = (match for match in _ASSIGNED.finditer(text) if not re.fullmatch(r"[\d.,e+-]+", match["value"]))
    return "a password or token with its name before it" if next(assigned, None) else None


def is_secret_name(name: str) -> bool:
    """Whether a key by its name is one of a secret: `API_KEY`, `hf-token`; not `tokens_per_step`."""
    return NAME.search(name) is not None
