"""Conditions over an experiment, as `sweep.where` holds them: a small, safe part of Python's expressions.

Names are keys of the configuration (`recipe.micro_batch`, `hardware.name`); a group stands for its option's name.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum

from pipeline.errors import ConfigError
from pipeline.types import Experiment

_BINARY: Mapping[type[ast.operator], Callable[..., object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: Mapping[type[ast.cmpop], Callable[..., bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Is: lambda left, right: left is right,
    ast.IsNot: lambda left, right: left is not right,
}
_UNARY: Mapping[type[ast.unaryop], Callable[..., object]] = {ast.Not: operator.not_, ast.USub: operator.neg}
_CALLS: Mapping[str, Callable[..., object]] = {"min": min, "max": max, "abs": abs, "len": len}
_CONSTANTS = {"null": None, "true": True, "false": False}
MAX_LENGTH = 1000


def holds(condition: str, experiment: Experiment) -> bool:
    """Whether an experiment meets a condition.

    Raises ConfigError for a condition that can't be read or has no value there.
    """
    try:
        return bool(_value(_parsed(condition), experiment))
    except _NoValue as error:
        raise ConfigError(f"sweep.where: {condition!r}: {error}") from error
    except (TypeError, ZeroDivisionError) as error:
        raise ConfigError(
            f"sweep.where: {condition!r} has no value: {error}; a key that is null compares with `is null` only"
        ) from error


class _NoValue(Exception):
    """A part of a condition means nothing here."""


def _parsed(condition: str) -> ast.expr:
    if len(condition) > MAX_LENGTH:
        raise _NoValue(f"is longer than {MAX_LENGTH} characters")
    try:
        return ast.parse(condition.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise _NoValue("can't be read; an example is `layout.tp * layout.pp <= 8 and nodes > 1`") from error


def _value(node: ast.expr, experiment: Experiment) -> object:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None):
            return node.value
        case ast.Name() | ast.Attribute():
            return _lookup(node, experiment)
        case ast.BoolOp(op=ast.And()):
            return all(_value(part, experiment) for part in node.values)
        case ast.BoolOp():
            return any(_value(part, experiment) for part in node.values)
        case ast.Compare():
            return _compare(node, experiment)
        case ast.List() | ast.Tuple():
            return [_value(part, experiment) for part in node.elts]
        case _:
            return _computed(node, experiment)


def _computed(node: ast.expr, experiment: Experiment) -> object:
    match node:
        case ast.BinOp() if type(node.op) in _BINARY:
            sides = (_value(node.left, experiment), _value(node.right, experiment))
            if any(isinstance(side, str | list) for side in sides):
                raise _NoValue(f"`{ast.unparse(node)}` computes with something that is no number")
            return _BINARY[type(node.op)](*sides)
        case ast.UnaryOp() if type(node.op) in _UNARY:
            return _UNARY[type(node.op)](_value(node.operand, experiment))
        case ast.IfExp():
            chosen = node.body if _value(node.test, experiment) else node.orelse
            return _value(chosen, experiment)
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _CALLS:
            return _CALLS[name](*(_value(argument, experiment) for argument in node.args))
        case _:
            allowed = "keys, numbers, strings, lists, and, or, not, comparisons, + - * / // %, min, max, abs, len"
            raise _NoValue(f"`{ast.unparse(node)}` is not allowed; there are {allowed}")


def _compare(node: ast.Compare, experiment: Experiment) -> bool:
    left = _value(node.left, experiment)
    for operation, part in zip(node.ops, node.comparators, strict=True):
        right = _value(part, experiment)
        if not _COMPARE[type(operation)](left, right):
            return False
        left = right
    return True


def _lookup(node: ast.expr, experiment: Experiment) -> object:
    key = ast.unparse(node)
    if key in _CONSTANTS:
        return _CONSTANTS[key]
    value: object = experiment
    for part in key.split("."):
        names = [field.name for field in fields(value)] if is_dataclass(value) else []
        if part not in names:
            raise _NoValue(f"{key}: no such key; there are: {', '.join(sorted(names)) or 'none below'}")
        value = getattr(value, part)
    return _plain(value)


def _plain(value: object) -> object:
    """Enums by value; a config group by the name of its option."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return getattr(value, "name", value)
    return value
