"""Start the studio: check what can be checked, listen on the loopback address, and serve until Ctrl-C."""

import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from text2grad.config import latest_checkpoint, recipe_of_run
from text2grad.errors import ConfigError, DataError, Text2GradError, require
from text2grad.feedback import read_examples
from text2grad.files import lock_directory
from text2grad.progress import note
from text2grad_studio.marks import is_rater
from text2grad_studio.session import Session
from text2grad_studio.sources import Source, open_sources
from text2grad_studio.suggestions import Suggestions
from text2grad_studio.versions import Versions

DEFAULT_SAMPLING = {"max_new_tokens": 128, "temperature": 0.7, "eos_token_ids": [], "prompt_format": "auto"}
OF_RUN = {*DEFAULT_SAMPLING, "chat_template", "chat_template_kwargs"}  # settings of [rollout]


def serve(
    paths: Sequence[Path],
    store: Path,
    *,
    rater: str,
    port: int = 0,
    model: str | None = None,
    critic: str | None = None,
    tokenizer: str | None = None,
    read_only: bool = False,
    on_ready: Callable[[str, Session], None],
) -> None:
    """Serve the studio on 127.0.0.1 until the process is interrupted.

    Args:
        paths: directories of runs, and JSONL files of responses.
        store: directory for indices, marks and versions.
        rater: name of the person.
        port: 0 takes a free one.
        model: directory or hub name of the policy to teach; None takes the last checkpoint of the first run.
        critic: "module:name" or directory of a reward model to ask for suggestions; None asks the critic of each run.
        tokenizer: directory or hub name of the tokenizer of prime-rl's token exports.
        read_only: save and teach nothing.
        on_ready: called with the address and the session when the page can be opened.

    Raises:
        ConfigError: if Starlette or uvicorn is missing, the port is taken, the rater has no usable name, or another
            studio uses the store.
        DataError: if a path holds no rollouts.
    """
    require("starlette", "uvicorn", "regex", extra="studio", purpose="text2grad studio")
    import uvicorn

    from text2grad_studio.app import make_app

    if not is_rater(rater):
        raise ConfigError(f"--rater {rater!r}: a name has letters, digits, spaces and .@_-, at most 40 characters")
    sources = open_sources(paths, store, tokenizer=tokenizer or "")
    policy = policy_of(sources, model)
    prompts = [source for source in sources if source.kind == "prompts"]
    if prompts and policy is None:
        raise ConfigError(
            f"{prompts[0].path} holds prompts without responses: name the policy to answer with --model PATH"
        )
    unanswered = {own: read_examples(own.path) for own in prompts if not own.files()}  # damaged ones are told now
    lock_directory(store)  # two servers would index the same bytes twice
    token = _token(store)
    listening = _listening(port)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    versions = Versions(store, policy)
    suggestions = Suggestions(critics_of(sources, critic, store))
    session = Session(sources, store, rater=rater, read_only=read_only, versions=versions, suggestions=suggestions)
    app = make_app(session, token=token, port=listening.getsockname()[1])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, ws="none"))
    follower = threading.Thread(target=session.follow, daemon=True)
    follower.start()
    if unanswered:
        note(f"the policy answers {sum(map(len, unanswered.values()))} prompts")
        versions.begin("answer", {"files": [[str(own.path), str(own.converted)] for own in unanswered]})
    on_ready(f"{address}/?token={token}", session)
    try:
        server.run(sockets=[listening])
    finally:
        session.end()
        versions.stop()
        suggestions.stop()
        listening.close()
        follower.join()


def policy_of(sources: Sequence[Source], model: str | None) -> dict[str, Any] | None:
    """Return the policy to teach, its settings of sampling and its run; None if no source has a policy.

    Args:
        sources: the first run with a recipe gives the settings, and its last checkpoint the policy.
        model: another policy.
    """
    runs = [source for source in sources if source.kind == "run" and (source.path / "run.json").exists()]
    sampling: dict[str, Any] = dict(DEFAULT_SAMPLING)
    path, of_run = model, None
    for run in runs[:1]:
        try:
            recipe = recipe_of_run(run.path)
        except Text2GradError as error:
            note(f"{error} Lessons need --model PATH", warning=True)
            continue
        of_run = str(run.path)
        sampling = recipe.rollout.model_dump(include=OF_RUN)
        sampling["prompt_format"] = recipe.model.prompt_format
        checkpoint = latest_checkpoint(run.path / "checkpoints")
        path = path or (str(checkpoint / "policy") if checkpoint else recipe.model.path or None)
    return None if path is None else {"path": path, "sampling": sampling, "run": of_run}


def critics_of(sources: Sequence[Source], critic: str | None, store: Path) -> dict[int, dict[str, str]]:
    """Return the critic of each source that has one, as `Suggestions` takes them; 0 stands for texts without a source.

    Args:
        sources: the runs and files.
        critic: the critic of all of them, "module:name" or the directory of a reward model.
        store: directory of the studio.
    """
    if critic:
        return {number: {"critic": critic} for number in range(max(1, len(sources)))}
    own = [n for n, source in enumerate(sources) if source.kind == "run" and (source.path / "run.json").exists()]
    return {n: {"run": str(sources[n].path), "store": str(store)} for n in own}


def _token(store: Path) -> str:
    """Return the token of this store; it stays, so that an open page goes on after a restart.

    Raises:
        DataError: if the directory cannot be written.
    """
    path = store / "token"
    try:
        store.mkdir(parents=True, exist_ok=True)
        if path.exists() and len(kept := path.read_text("ascii").strip()) >= 32:
            return kept
        path.unlink(missing_ok=True)
        token = secrets.token_urlsafe(32)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot write to {store}: {error}; choose another --out") from error
    return token


def _listening(port: int) -> socket.socket:
    """Return a socket that listens on the loopback address.

    Raises:
        ConfigError: if the port is taken.
    """
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind(("127.0.0.1", port))
        opened.listen(128)  # now: a browser that is quicker than the server waits
    except OSError as error:
        opened.close()
        raise ConfigError(f"cannot listen on port {port}: {error.strerror}; choose another with --port N") from error
    os.set_inheritable(opened.fileno(), False)
    return opened
