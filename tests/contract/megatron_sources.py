"""Reads what a Megatron-Core release defines, and what our adapter uses of it, from their sources alone."""

from __future__ import annotations

import ast
import importlib.util
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

Function = ast.FunctionDef
Read = Callable[[str], str | None]
"""From a file's path within a release to its text, or None when there is no such file."""


def installed_release(site_packages: Path) -> Release:
    """The release that is installed in this folder."""

    def read(path: str) -> str | None:
        file = site_packages / path
        return file.read_text(encoding="utf-8") if file.is_file() else None

    return Release(read)


def wheel_release(wheel: Path) -> Release:
    """The release in a wheel, which need not fit this Python."""
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())
    return Release(lambda path: archive.read(path).decode("utf-8") if path in names else None)


# --------------------------------------------------------------------------- what a release defines


@dataclass(frozen=True)
class Release:
    """Modules of one release, parsed when they are asked for."""

    read: Read
    parsed: dict[str, Module | None] = field(default_factory=dict)

    def module(self, name: str) -> Module | None:
        """A module by its full name, or None when the release has none of that name."""
        if name not in self.parsed:
            self.parsed[name] = self._parse(name)
        return self.parsed[name]

    def _parse(self, name: str) -> Module | None:
        path = name.replace(".", "/")
        for file, package in ((f"{path}/__init__.py", name), (f"{path}.py", name.rpartition(".")[0])):
            text = self.read(file)
            if text is not None:
                return Module(self, package, _bindings(ast.parse(text).body))
        return None


@dataclass(frozen=True)
class Module:
    """Names that a module binds, those under `try` and `if` included."""

    release: Release
    package: str
    bindings: dict[str, ast.stmt]

    def find(self, name: str) -> Found | None:
        """Where a name of this module is really defined: imports are followed."""
        node = self.bindings.get(name)
        if not isinstance(node, ast.ImportFrom):
            return None if node is None else Found(self, node)
        source = self.release.module(self._absolute(node))
        if source is None or source is self:  # a package that imports its own submodule
            return None
        return source.find(next(alias.name for alias in node.names if name in (alias.asname, alias.name)))

    def _absolute(self, node: ast.ImportFrom) -> str:
        parents = self.package.split(".")
        base = parents[: len(parents) - node.level + 1] if node.level else []
        return ".".join([*base, *filter(None, [node.module])])


@dataclass(frozen=True)
class Found:
    """A definition and the module it stands in."""

    module: Module
    node: ast.stmt

    def parameters(self) -> set[str]:
        """Names that a call may give by keyword."""
        match self.node:
            case ast.FunctionDef():
                return _parameters(self._lender() or self.node)
            case ast.ClassDef():
                return self._constructor_parameters()
        raise AssertionError(f"not callable: {ast.unparse(self.node)[:80]}")

    def attributes(self) -> set[str]:
        """Methods, fields and everything that a method assigns to self, bases included."""
        own = {*_bindings(self.class_body()), *_assigned_to_self(self.node)}
        lent = torch_module_attributes() if self._is_torch_module() else set()
        return own.union(lent, *(base.attributes() for base in self.bases()))

    def method(self, name: str) -> Found | None:
        """A method of a class, inherited or its own."""
        own = _bindings(self.class_body()).get(name)
        if own is not None:
            return Found(self.module, own)
        inherited = (base.method(name) for base in self.bases())
        return next((method for method in inherited if method is not None), None)

    def returned(self) -> list[Found]:
        """The functions of its own module that a function names, so may hand out."""
        named = {node.id for node in ast.walk(self.node) if isinstance(node, ast.Name)}
        found = (self.module.find(name) for name in sorted(named))
        return [other for other in found if other is not None and isinstance(other.node, Function)]

    def bases(self) -> list[Found]:
        """Base classes as far as they are the release's own."""
        assert isinstance(self.node, ast.ClassDef)
        found = (self.module.find(base.id) for base in self.node.bases if isinstance(base, ast.Name))
        return [base for base in found if base is not None and isinstance(base.node, ast.ClassDef)]

    def takes_anything(self) -> bool:
        """Whether it is a function that hands on whatever keywords it is given."""
        return isinstance(self.node, ast.FunctionDef) and self.node.args.kwarg is not None and self._lender() is None

    def _is_torch_module(self) -> bool:
        assert isinstance(self.node, ast.ClassDef)
        return any(ast.unparse(base) in {"torch.nn.Module", "nn.Module"} for base in self.node.bases)

    def class_body(self) -> list[ast.stmt]:
        """Statements of a class."""
        assert isinstance(self.node, ast.ClassDef)
        return self.node.body

    def _constructor_parameters(self) -> set[str]:
        written = _bindings(self.class_body()).get("__init__")
        if isinstance(written, Function):
            return _parameters(written)
        fields = {name for name, node in _bindings(self.class_body()).items() if isinstance(node, ast.AnnAssign)}
        return fields.union(*(base.parameters() for base in self.bases()))

    def _lender(self) -> Function | None:
        """The function whose signature a `copy_signature` decorator lends to this one."""
        assert isinstance(self.node, Function)
        for decorator in self.node.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("copy_signature"):
                lender = self.module.find(ast.unparse(decorator.args[0]))
                assert lender is not None
                assert isinstance(lender.node, Function)
                return lender.node
        return None


@cache
def torch_module_attributes() -> frozenset[str]:
    """What every module of torch has, read from its source without importing it."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).parent / "nn" / "modules" / "module.py"
    tree = ast.parse(source.read_text(encoding="utf-8"))
    (module,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Module")
    return frozenset({*_bindings(module.body), *_assigned_to_self(module)})


def _parameters(function: Function) -> set[str]:
    arguments = function.args
    return {argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)} - {"self"}


def _bindings(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Names bound by statements; of several bindings the one that imports or defines most is kept: the first."""
    bound: dict[str, ast.stmt] = {}
    for statement in _flattened(body):
        for name in _names(statement):
            bound.setdefault(name, statement)
    return bound


def _flattened(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        match statement:
            case ast.Try():
                yield from _flattened([*statement.body, *(s for h in statement.handlers for s in h.body)])
            case ast.If():
                yield from _flattened([*statement.body, *statement.orelse])
            case _:
                yield statement


def _names(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.FunctionDef() | ast.ClassDef():
            return [statement.name]
        case ast.ImportFrom():
            return [alias.asname or alias.name for alias in statement.names]
        case ast.Assign():
            return [target.id for target in statement.targets if isinstance(target, ast.Name)]
        case ast.AnnAssign():
            return [statement.target.id] if isinstance(statement.target, ast.Name) else []
    return []


def _assigned_to_self(node: ast.AST) -> set[str]:
    return {
        target.attr
        for target in ast.walk(node)
        if isinstance(target, ast.Attribute)
        and isinstance(target.ctx, ast.Store)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    }


# --------------------------------------------------------------------------- what an adapter uses


@dataclass(frozen=True, order=True)
class Use:
    """A name of a release, and the keywords or the attribute that are used of it."""

    module: str
    name: str
    keywords: tuple[str, ...] = ()
    attribute: str = ""
    """A method or field of the class `name`."""
    of_result: bool = False
    """The keywords go to what a call of `name` returns."""


def uses(source: str, package: str) -> set[Use]:
    """Everything a module uses of a package: imported names, keywords of calls, attributes of annotated values."""
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package
        for alias in node.names
    }
    found = {Use(module, name) for module, name in imported.values() if module}
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef | ast.ClassDef):
            found |= set(_uses_in(scope, imported))
    return found


def _uses_in(scope: ast.FunctionDef | ast.ClassDef, imported: dict[str, tuple[str | None, str]]) -> Iterator[Use]:
    typed = dict(_typed_names(scope, imported))
    lent_to = _lent_to(scope, imported)
    for node in ast.walk(scope):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in typed:
            module, name = typed[node.value.id]
            yield Use(module, name, attribute=node.attr)
        if lent_to and isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
            yield Use(*lent_to, tuple(sorted(keyword.arg for keyword in node.keywords if keyword.arg)))
        if isinstance(node, ast.Call):
            yield from _uses_in_call(node, scope, imported, typed)


def _lent_to(
    scope: ast.FunctionDef | ast.ClassDef, imported: dict[str, tuple[str | None, str]]
) -> tuple[str, str] | None:
    """The class whose keywords a function returns, as in `-> Annotated[Options, TransformerConfig]`."""
    match scope:
        case ast.FunctionDef(
            returns=ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[_, ast.Name(id=kind)]))
        ) if kind in imported:
            return imported[kind][0] or "", imported[kind][1]
    return None


def _typed_names(
    scope: ast.FunctionDef | ast.ClassDef, imported: dict[str, tuple[str | None, str]]
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Arguments and variables that are annotated with an imported class."""
    for node in ast.walk(scope):
        match node:
            case ast.arg(arg=variable, annotation=ast.Name(id=kind)) if kind in imported:
                yield variable, imported[kind]  # type: ignore[misc]
            case ast.AnnAssign(target=ast.Name(id=variable), annotation=ast.Name(id=kind)) if kind in imported:
                yield variable, imported[kind]  # type: ignore[misc]


def _uses_in_call(
    call: ast.Call,
    scope: ast.FunctionDef | ast.ClassDef,
    imported: dict[str, tuple[str | None, str]],
    typed: dict[str, tuple[str, str]],
) -> Iterator[Use]:
    keywords = tuple(sorted(keyword.arg for keyword in call.keywords if keyword.arg))
    match call.func:
        case ast.Name(id=name) if name in imported:
            module, original = imported[name]
            yield Use(module or "", original, keywords)
        case ast.Name(id=name) if name in (results := _results(scope, imported)):
            yield Use(*results[name], keywords, of_result=True)
        case ast.Attribute(value=ast.Name(id=name), attr=method) if name in typed and keywords:
            yield Use(*typed[name], keywords, attribute=method)
        case ast.Attribute(value=ast.Name(id=name), attr=function) if name in imported:
            module, original = imported[name]
            yield Use(f"{module}.{original}", function, keywords)
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__") if isinstance(
            scope, ast.ClassDef
        ):
            for base in scope.bases:
                if isinstance(base, ast.Name) and base.id in imported:
                    module, original = imported[base.id]
                    yield Use(module or "", original, keywords)


def _results(scope: ast.AST, imported: dict[str, tuple[str | None, str]]) -> dict[str, tuple[str, str]]:
    """Variables that hold what an imported function returned."""
    return {
        target.id: (imported[call.func.id][0] or "", imported[call.func.id][1])
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and isinstance(call := node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(call.func, ast.Name) and call.func.id in imported
    }


# --------------------------------------------------------------------------- one against the other


def missing(use: Use, release: Release) -> str | None:
    """What a release lacks of a use, or None."""
    module = release.module(use.module)
    if module is None:
        return f"no module {use.module}"
    found = module.find(use.name)
    if found is None:
        return None if release.module(f"{use.module}.{use.name}") else f"{use.module} has no {use.name}"
    if use.attribute and use.attribute not in found.attributes():
        return f"{use.name} has no {use.attribute}"
    if not use.keywords:
        return None
    callables = _callables(use, found)
    lacking = [
        k for k in use.keywords if not any(k in each.parameters() or each.takes_anything() for each in callables)
    ]
    return f"{use.name} takes no {', '.join(lacking)}" if lacking else None


def _callables(use: Use, found: Found) -> list[Found]:
    if use.of_result:
        return found.returned()
    method = found.method(use.attribute) if use.attribute else found
    return [method] if method is not None else []
