"""Whether ``base_model_name_or_path`` may stand with the base model an adapter was uploaded for.

Nothing is ever loaded by this name: the re-serialised config carries our own id instead.
"""

import re
from collections.abc import Set as AbstractSet
from typing import Final

from adapters.base_model_spec import BaseModelSpec
from adapters.manifest import CONFIG_FILE
from adapters.report import Report
from core.strict_json import shorten

_FIELD: Final = "base_model_name_or_path"
# A Hub name has one slash at most, so anything rooted, relative to a dot, deeper or with a backslash is a path.
_PATH: Final = re.compile(r"(?:/|\.{1,2}(?:/|$)|~|[A-Za-z]:[\\/]|[^/]*\\|[^/:]+/[^/]+/.).*", re.DOTALL)


def judge_base_name(name: object, base: BaseModelSpec, known_bases: AbstractSet[str], report: Report) -> None:
    """Right is the base's id or Hub name. Another model's name is refused; a path on the trainer's disk says nothing
    and gets a note, since the shapes decide.
    """
    if name is None or name == "":
        report.note(f"{CONFIG_FILE} does not say which base model it was trained on; its shapes fit {base.id}")
        return
    if not isinstance(name, str) or len(name) > 4096:
        report.refuse(
            "config_invalid",
            f"{_FIELD} is {shorten(name)}; write {shorten(base.hub_name)}",
            file=CONFIG_FILE,
            where=_FIELD,
        )
        return
    wanted = {base.id.casefold(), base.hub_name.casefold()}
    if name.casefold() in wanted:
        return
    known = name.casefold() in {known.casefold() for known in known_bases}
    if not known and _PATH.fullmatch(name):
        report.note(f"{CONFIG_FILE} names the local path {shorten(name)} as its base model; its shapes fit {base.id}")
        return
    cure = (
        f"upload it as an adapter of that base model, or train it on {base.hub_name}"
        if known
        else f"if it was trained on {base.hub_name}, write that name there"
    )
    report.refuse(
        "base_model_mismatch",
        f"{_FIELD} is {shorten(name)}, but this adapter is for {base.id}; {cure}",
        file=CONFIG_FILE,
        where=_FIELD,
    )
