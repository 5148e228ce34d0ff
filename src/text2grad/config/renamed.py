"""Settings of earlier versions: old names are read as the new ones, settings that are gone are read and dropped.

Recipes of users warn once per setting (`RenamedSetting`); the recipe that a run wrote into `run.json` is read silently.
"""

import warnings
from collections.abc import Mapping
from typing import Any

from text2grad.errors import ConfigError, RenamedSetting

RENAMED = {
    "critic.agreement": "vote_threshold",
    "critic.supported": "quoted_in_feedback",
    "reward_model.words": "write_feedback",
    "server.words": "write_feedback",
    "refresh.blamed": "negative_share",
}
"""Old `section.key` → new key of the same section."""

GONE: dict[str, tuple[Any, str]] = {
    "model.detach_trunk": (True, "the value loss never reaches the policy's weights"),
    "sft.answer_only": (True, "the loss of fine-tuning is always on the answer only"),
    "run.rollout_file_mb": (None, "a rollouts file always ends at 64 MiB"),
}
"""`section.key` → (the value that is now fixed, or None for any; the behaviour in words)."""


def with_current_names(data: Mapping[str, Any], where: str, *, warn: bool = True) -> dict[str, Any]:
    """Return sections of settings under the names of this version.

    Args:
        data: sections as TOML or JSON gives them; other values than mappings are passed on.
        where: the file, named in warnings and errors.
        warn: issue a `RenamedSetting` warning, one line, for each old name.

    Raises:
        ConfigError: if an old and its new name are both set, or a setting that is gone had another effect.
    """
    return {
        section: _section(section, values, where, warn=warn) if isinstance(values, Mapping) else values
        for section, values in data.items()
    }


def _section(section: str, values: Mapping[str, Any], where: str, *, warn: bool) -> dict[str, Any]:
    current = dict(values)
    for key, value in values.items():
        name = f"{section}.{key}"
        if name in RENAMED:
            new = RENAMED[name]
            if new in values:
                raise ConfigError(f"{where}: {name} is the old name of {section}.{new}, and both are set; keep the new")
            current[new] = current.pop(key)
            notice = f"{where}: {name} is now named {section}.{new}; the old name still works"
        elif name in GONE:
            fixed, behaviour = GONE[name]
            if fixed is not None and value != fixed:
                raise ConfigError(f"{where}: {name} = {value!r} is no longer possible: {behaviour}; leave it out")
            del current[key]
            notice = f"{where}: {name} is gone and was ignored: {behaviour}"
        else:
            continue
        if warn:
            warnings.warn(notice, RenamedSetting, stacklevel=4)
    return current
