"""Records of HumanEval+ and MBPP+ in EvalPlus's own format → tests for the sandbox (arXiv 2305.01210).

A record has inputs (`base_input` of the original benchmark, `plus_input` of EvalPlus) and no outputs: the outputs are
those of the reference solution, `prompt` + `canonical_solution`, which the tests run in the sandbox beside the answer's
program, in a process that the program does not reach. `contract` only served to make the inputs, and is not used.

Outputs are compared as EvalPlus 0.3 does it (evalplus/eval/__init__.py): equality first; where `atol` is not 0, or the
expected output is a float or a list of floats (then 1e-6, also for the inputs after it), types and lengths must be
equal and numbers close by `atol` and a relative 1e-7. Its exceptions are kept: sets of some lists, "not None" for
matches of regular expressions, four problems of MBPP with several right answers, and the root of a polynomial in
HumanEval/32. JSON has neither tuples nor sets: EvalPlus's list of the problems of MBPP that have them is applied.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from text2grad.errors import DataError

AS_SETS = (
    *("similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum"),
    *("intersection_array", "find_dissimilar", "Diff"),
)
NOT_NONE = ("check_str", "text_match_three", "text_starta_endb")

_TESTS = """\
import copy
import math

inf, nan = math.inf, math.nan
_space = {{}}
exec({reference!r}, _space)
_right = _space[{entry_point!r}]
_kind, _name, _atol = {kind!r}, {entry_point!r}, {atol!r}
_as_set, _not_none = {as_set!r}, {not_none!r}


def _floats(value):
    return all(isinstance(one, float) for one in (value if isinstance(value, (list, tuple)) and value else [value]))


def _close(found, wanted, atol):
    if isinstance(wanted, (list, tuple)):
        return (
            isinstance(found, (list, tuple))
            and len(found) == len(wanted)
            and all(_close(a, b, atol) for a, b in zip(found, wanted))
        )
    if found == wanted:
        return True
    return math.isfinite(wanted) and abs(found - wanted) <= atol + 1e-7 * abs(wanted)


def _also_right(found, given, atol):
    if _name == "surface_Area":
        base, height = given
        return abs(found - round(base**2 + 2 * base * math.sqrt((base / 2) ** 2 + height**2))) <= atol
    if _name == "digit_distance_nums":
        width = max(len(str(one)) for one in given)
        return found == sum(abs(int(a) - int(b)) for a, b in zip(*(str(one).zfill(width) for one in given)))
    return _name == "are_equivalent" or (_name == "sum_div" and found == 0)


for _given in {inputs}:
    _wanted = _right(*copy.deepcopy(_given))
    _found = {entry_point}(*copy.deepcopy(_given))
    if _kind == "humaneval" and _name == "find_zero":
        assert abs(sum(c * math.pow(_found, i) for i, c in enumerate(_given[0]))) <= _atol
        continue
    if _as_set:
        _equal = set(_found) == set(_wanted)
    elif _not_none:
        _wanted = _wanted is not None
        _equal = _found == _wanted if isinstance(_found, bool) else _wanted == (_found is not None)
    else:
        _equal = _found == _wanted or (_kind == "mbpp" and _also_right(_found, _given, _atol))
    if _atol == 0 and _floats(_wanted):
        _atol = 1e-6
    if not _equal:
        assert _atol != 0 and type(_found) is type(_wanted)
        assert _close(_found, _wanted, _atol)
"""


def tests_of(record: Mapping[str, Any], key: str, where: str) -> str:
    """Return the tests of a record's inputs under a key, "base_input" or "plus_input"."""
    name, task = str(record["entry_point"]), str(record["task_id"])
    kind = "mbpp" if task.lower().startswith("mbpp") else "humaneval"
    given = record.get(key) or []
    if not isinstance(given, list) or not all(isinstance(one, list) for one in given):
        raise DataError(f'{where}: "{key}" must be a list of lists of arguments; got {json.dumps(given)[:60]}')
    inputs = typed_inputs(task, given) if kind == "mbpp" else given
    return _TESTS.format(
        reference=str(record["prompt"]) + str(record["canonical_solution"]),
        entry_point=name,
        kind=kind,
        atol=record.get("atol") or 0,
        as_set=kind == "mbpp" and name in AS_SETS,
        not_none=kind == "mbpp" and name in NOT_NONE,
        inputs=repr(inputs),
    )


def typed_inputs(task: str, inputs: Sequence[Any]) -> list[Any]:
    """Return inputs of a problem of MBPP+ with the tuples, sets and complex numbers that JSON lacks.

    Example:
        >>> typed_inputs("Mbpp/2", [[[1, 2], [2]]])
        [[(1, 2), (2,)]]
    """
    number = task.rpartition("/")[2]
    convert = _CONVERSIONS.get(int(number)) if number.isdecimal() else None
    return [convert(one) for one in inputs] if convert else list(inputs)


def _all(value: Any) -> Any:
    """Make every list a tuple."""
    return tuple(_all(one) for one in value) if isinstance(value, list) else value


_GROUPS: Sequence[tuple[Sequence[int], Callable[[Any], Any]]] = (
    (
        (2, 116, 132, 143, 222, 261, 273, 394, 399, 421, 424, 429, 470, 560, 579, 596, 616, 630, 726, 740, 744, 809),
        lambda one: [tuple(value) for value in one],
    ),
    (
        (63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780),
        lambda one: [[tuple(value) for value in each] for each in one],
    ),
    ((75, 413, 444, 753), lambda one: [[tuple(value) for value in one[0]], one[1]]),
    ((106, 750), lambda one: [one[0], tuple(one[1])]),
    ((115,), lambda one: [[set(value) if isinstance(value, list) and value else {} for value in one[0]]]),
    ((124,), lambda one: (float(one[0]), complex(one[1]))),
    ((250, 405, 446, 617, 720, 763, 808), lambda one: [tuple(one[0]), one[1]]),
    ((259, 401, 445), lambda one: [tuple(tuple(value) for value in argument) for argument in one]),
    ((278,), lambda one: [tuple(tuple(value) if isinstance(value, list) else value for value in one[0])]),
    ((307,), lambda one: [tuple(one[0]), one[1], one[2]]),
    ((722,), lambda one: [{key: tuple(value) for key, value in one[0].items()}, *one[1:]]),
    ((252,), lambda one: [complex(one[0])]),
    ((580, 615, 791), _all),
)
_CONVERSIONS = {number: convert for numbers, convert in _GROUPS for number in numbers}
