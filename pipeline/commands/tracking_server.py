"""server: an MLflow server for a team, with a login, and copies of its files."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import secrets
import shutil
import socket
import sqlite3
import sys
from pathlib import Path
from urllib.parse import urlsplit

from pipeline.commands.tracking import become_server, check_free
from pipeline.errors import UserError
from pipeline.rundir import write_text
from pipeline.tracking.store import Store

PASSWORD = "MLFLOW_AUTH_ADMIN_PASSWORD"
SHORTEST_PASSWORD = 12
DATABASE, LOGINS, ARTIFACTS = "mlflow.db", "logins.db", "mlartifacts"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def start(arguments: argparse.Namespace) -> int:
    """Becomes the server; its files belong to this user alone."""
    store = _store(arguments.database, arguments.folder.absolute())
    options = _allowed_hosts(arguments.host, arguments.port, arguments.allowed_hosts)
    _check_password(arguments.folder / LOGINS)
    if importlib.util.find_spec("flask_wtf") is None:
        raise UserError("MLflow's login needs Flask-WTF: pip install 'himori[server]'")
    check_free(arguments.host, arguments.port)
    os.umask(0o077)
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    logins = (
        f"[mlflow]\ndefault_permission = READ\ndatabase_uri = sqlite:///{folder / LOGINS}\nadmin_username = admin\n"
    )
    # MLflow falls back to its own function only where the key is there.
    logins += "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    write_text(folder / "logins.ini", logins.replace("%", "%%"), mode=0o600)
    if arguments.host not in LOOPBACK:
        print("passwords travel in the clear over http; put a proxy with TLS before it", file=sys.stderr, flush=True)
    print(f"MLflow server: http://{arguments.host}:{arguments.port} on {store.uri}", flush=True)
    os.chdir(folder)
    become_server(
        store,
        folder / ARTIFACTS,
        arguments.host,
        arguments.port,
        options=[
            "--app-name",
            "basic-auth",
            "--serve-artifacts",
            "--default-artifact-root",
            "mlflow-artifacts:/",
            *options,
        ],
        MLFLOW_AUTH_CONFIG_PATH=str(folder / "logins.ini"),
        # It only has to be the same in all workers of one server, of which there is one.
        MLFLOW_FLASK_SERVER_SECRET_KEY=os.environ.get("MLFLOW_FLASK_SERVER_SECRET_KEY") or secrets.token_hex(32),
    )


def backup(arguments: argparse.Namespace) -> int:
    """Copies a server's files while it runs: databases as of one moment, then artifacts, which never change."""
    source, target = arguments.folder, arguments.copy
    if not (source / DATABASE).exists():
        raise UserError(f"--folder: {source} holds no {DATABASE}; PostgreSQL has pg_dump, see docs/tracking-server.md")
    _copy(source, target)
    print(f"{source} copied to {target}")
    return 0


def restore(arguments: argparse.Namespace) -> int:
    """Makes a server's folder from a back-up; never over one that is there."""
    if not (arguments.copy / DATABASE).exists():
        raise UserError(f"{arguments.copy} is no back-up: it holds no {DATABASE}")
    _copy(arguments.copy, arguments.folder)
    print(f"{arguments.folder} made from {arguments.copy}; `himori server start --folder {arguments.folder}`")
    return 0


def _copy(source: Path, target: Path) -> None:
    """Under another name until it is whole."""
    if target.exists():
        raise UserError(f"{target} is there already; name a folder that isn't")
    making = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    making.mkdir(mode=0o700, parents=True)
    try:
        for name in (DATABASE, LOGINS):
            if (source / name).exists():
                _copy_database(source / name, making / name)
        # After the database: what that names is then in the copy.
        if (source / ARTIFACTS).exists():
            shutil.copytree(source / ARTIFACTS, making / ARTIFACTS)
        making.rename(target)
    except BaseException:
        shutil.rmtree(making)
        raise


def _copy_database(source: Path, target: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=60)) as old,
        contextlib.closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new)
        (found,) = new.execute("PRAGMA integrity_check").fetchone()
    if found != "ok":
        raise UserError(f"{source} is damaged: {found}")
    target.chmod(0o600)


def _store(database: str | None, folder: Path) -> Store:
    if database is None:
        return Store(f"sqlite:///{folder / DATABASE}", folder / DATABASE)
    parts = urlsplit(database)
    if parts.scheme.partition("+")[0] != "postgresql":
        raise UserError(f"--database: {parts.scheme or 'a path'} is not known here; give postgresql://USER@HOST/NAME")
    if parts.password or "password" in parts.query:
        raise UserError("--database: holds a password, which every user of this machine could read; use ~/.pgpass")
    return Store(database, None)


def _check_password(logins: Path) -> None:
    password = os.environ.get(PASSWORD, "")
    if not logins.exists() and len(password) < SHORTEST_PASSWORD:
        raise UserError(
            f"{PASSWORD}: {'not set' if not password else 'too short'}; the first start needs the admin's password "
            f"there, {SHORTEST_PASSWORD} characters at least: read -rs {PASSWORD} && export {PASSWORD}"
        )


def _allowed_hosts(host: str, port: int, names: str | None) -> list[str]:
    if host not in LOOPBACK and not names:
        raise UserError(
            f"--allowed-hosts: needed with --host {host}; give the names clients use, as {socket.gethostname()}"
        )
    wanted = [*LOOPBACK[:2], *(name.strip() for name in (names or "").split(",") if name.strip())]
    return ["--allowed-hosts", ",".join(entry for name in wanted for entry in (name, f"{name}:{port}"))]
