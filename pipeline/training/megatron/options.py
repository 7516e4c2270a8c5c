"""How functions that set keywords of Megatron-Core's configuration classes are written."""

from typing import Any, TypeAlias

Options: TypeAlias = dict[str, Any]
"""Keywords by name. A function says whose they are: `-> Annotated[Options, TransformerConfig]`; the contract test
looks the keywords of its `dict(...)` up in that class."""
