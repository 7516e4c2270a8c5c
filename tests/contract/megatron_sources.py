"""Reads what a Megatron-Core release defines, and what our adapter uses of it, from their sources alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources.abc import Traversable

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef | ast.Assign | ast.AnnAssign


# --------------------------------------------------------------------------- a release


@dataclass(frozen=True)
class Found:
    """A definition and the module it stands in."""

    module: Module
    node: Definition

    def parameters(self) -> set[str] | None:
        """Names that a call may use as keywords; None: any."""
        match self.node:
            case ast.ClassDef():
                return self._constructor_parameters()
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return _parameters_of(self._signature_source())
        raise AssertionError(f"{self.module.name}: not callable: {ast.unparse(self.node)[:80]}")

    def attributes(self) -> set[str]:
        """Names of methods, fields and everything that a method assigns to self, bases included."""
        assert isinstance(self.node, ast.ClassDef)
        own = {name for part in self.node.body for name in _names_bound(part)}
        own |= {
            target.attr
            for target in ast.walk(self.node)
            if isinstance(target, ast.Attribute)
            and isinstance(target.ctx, ast.Store)
            and isinstance(target.value, ast.Name)
            and target.value.id == "self"
        }
        return own.union(*(base.attributes() for base in self.bases()))

    def returned_functions(self) -> list[Found]:
        """The module's own functions that a function hands out by name."""
        names = {node.id for node in ast.walk(self.node) if isinstance(node, ast.Name)}
        found = (self.module.find(name) for name in sorted(names & set(self.module.functions)))
        return [function for function in found if function is not None and function.node is not self.node]

    def bases(self) -> Iterator[Found]:
        """Base classes within the release."""
        assert isinstance(self.node, ast.ClassDef)
        for base in self.node.bases:
            found = self.module.find(base.id) if isinstance(base, ast.Name) else None
            if found is not None and isinstance(found.node, ast.ClassDef):
                yield found

    def _constructor_parameters(self) -> set[str] | None:
        assert isinstance(self.node, ast.ClassDef)
        for part in self.node.body:
            if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                return _parameters_of(part)
        inherited = [base.parameters() for base in self.bases()]
        if any(_is_dataclass(decorator) for decorator in self.node.decorator_list):
            own = {name for part in self.node.body if isinstance(part, ast.AnnAssign) for name in _names_bound(part)}
            return own.union(*(names for names in inherited if names is not None))
        return inherited[0] if inherited else set()

    def _signature_source(self) -> Function:
        """The function whose signature a `copy_signature` decorator lends to this one, or itself."""
        assert isinstance(self.node, Function)
        for decorator in self.node.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "copy_signature":
                lender = self.module.find(ast.unparse(decorator.args[0]))
                assert lender is not None
                assert isinstance(lender.node, Function)
                return lender.node
        return self.node


@dataclass(frozen=True)
class Release:
    """The package `megatron` of one release: its folder, unpacked or in a wheel."""

    root: Traversable
    _modules: dict[str, Module | None] = field(default_factory=dict)

    def module(self, name: str) -> Module | None:
        """A module by its full name, or None when the release has no such module."""
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> Module | None:
        base = self.root.joinpath(*name.split("."))
        for file, is_package in ((base / "__init__.py", True), (base.parent_file(base), False)):
            if file.is_file():
                return Module(self, name, is_package, ast.parse(file.read_text(encoding="utf-8")))
        return None
