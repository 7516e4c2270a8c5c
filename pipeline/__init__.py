"""himori: takes a training run from a hardware profile and a recipe to a tracked, comparable result."""

__version__ = "0.1.0"
