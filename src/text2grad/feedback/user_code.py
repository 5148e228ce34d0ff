"""Python code of a user: critics and metrics named as "module:name", and the file and line where one failed."""

import importlib
import sys
import sysconfig
import traceback
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from text2grad.errors import ConfigError
from text2grad.feedback.process_state import kept_process

OWN_AND_LIBRARIES = (
    str(Path(__file__).parents[1]),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)
LONGEST_TEXT = 1000  # characters of an error's message that are shown

_changed: dict[Path, int] = {}  # when the files of users' modules were changed before they were imported, in ns


def load_callable(path: str, kind: str) -> Any:
    """Return the function or object `module:name`; a class is called without arguments.

    Args:
        path: "module:name"; modules in the working directory are found.
        kind: its role in words, for errors.

    Raises:
        ConfigError: if it cannot be imported, created or called.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute or module_name.startswith("."):
        raise ConfigError(f'a {kind} is given as "module:name", got {path!r}')
    if module_name.endswith(".py") or "/" in module_name:
        near = module_name.removesuffix(".py").strip("/").replace("/", ".")
        raise ConfigError(f'a {kind} is given as "module:name", not by its file: "{near}:{attribute}", got {path!r}')
    if sys.path[:1] != [str(Path.cwd())]:
        sys.path.insert(0, str(Path.cwd()))
    _forget_stale(module_name)
    try:
        with kept_process(f"{kind} {path}", loading=True):
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        problem = f"importing {module_name} ends in {described(error)}"
        if isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
            problem = f"there is no module {error.name!r} in {Path.cwd()}, and none is installed"
        raise ConfigError(f"{kind} {path!r} cannot be loaded: {problem}") from error
    if not hasattr(module, attribute):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        similar = get_close_matches(attribute, names, n=1)
        hint = f'. Did you mean "{similar[0]}"?' if similar else ""
        why = f"module {module_name!r} has no attribute {attribute!r}{hint}"
        raise ConfigError(f"{kind} {path!r} cannot be loaded: {why}")
    named = getattr(module, attribute)
    try:
        with kept_process(f"{kind} {path}", loading=True):
            loaded = named() if isinstance(named, type) else named
    except (Exception, SystemExit) as error:
        why = f"is a class that cannot be called without arguments: {described(error)}"
        raise ConfigError(f"{kind} {path!r} {why}") from error
    if not callable(loaded):
        raise ConfigError(f"{kind} {path!r} is a {type(loaded).__name__}, which cannot be called")
    return loaded


def _forget_stale(name: str) -> None:
    """Let a module of the working directory be read anew where another directory's, or an older file, was imported."""
    path = Path.cwd() / f"{name}.py"
    if path.is_file():
        changed = _changed.get(path) not in (None, path.stat().st_mtime_ns)
        if name in sys.modules and (changed or getattr(sys.modules[name], "__file__", None) != str(path)):
            del sys.modules[name]
            importlib.invalidate_caches()
        _changed[path] = path.stat().st_mtime_ns


def described(error: BaseException) -> str:
    """Return the type and the message of an error in one line, with the file and line of the user's code, if any.

    That is the innermost line that is not of text2grad or of a library. A search of settings reads the last line of a
    run's log, which must begin with the name of our own error.
    """
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    frames = [frame for frame in frames if not frame[0].startswith((*OWN_AND_LIBRARIES, "<"))]
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).exists():
        frames.append((error.filename, error.lineno))
    place = ""
    if frames:
        path, line = Path(frames[-1][0]), frames[-1][1]
        place = f" at {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line}"
    text = "its message cannot be made"
    with suppress(Exception):
        text = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    text = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}… ({len(text):,} characters)"
    return f"{type(error).__name__}{place}{f': {text}' if text else ''}"
