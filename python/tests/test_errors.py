"""The error hierarchy is the one of protocol/errors.go."""

from __future__ import annotations

import copy
import json
import pickle
import re
import traceback
from pathlib import Path

import pytest

import ratoon
from ratoon import _errors, _wire

from .fake import FakeAgent, failed

PROTOCOL = Path(__file__).parents[2] / "protocol"
needs_source = pytest.mark.skipif(
    not PROTOCOL.is_dir(), reason="run from a checkout of the repository: it needs ../protocol"
)


def go_strings(text: str) -> str:
    """A Go string literal's value."""
    if text.startswith("`"):
        return text[1:-1]
    value: str = json.loads(text)
    return value


@needs_source
def test_codes_and_remedies_are_those_of_the_go_file() -> None:
    source = (PROTOCOL / "errors.go").read_text()
    codes = dict(re.findall(r'^\t(Code\w+)\s+Code = "(\w+)"', source, re.MULTILINE))
    assert len(codes) > 20
    remedies = {
        codes[name]: go_strings(text)
        for name, text in re.findall(r'^\t(Code\w+):\s+("(?:[^"\\]|\\.)*"|`[^`]*`),', source, re.M)
    }
    assert {code: kind.default_remedy for code, kind in _errors.CLASSES.items()} == remedies
    assert set(codes.values()) == set(_errors.CLASSES)


@needs_source
def test_limits_are_those_of_the_go_files() -> None:
    limits = (PROTOCOL / "limits.go").read_text()

    def constant(name: str) -> int:
        (left, right) = re.findall(rf"^\t{name} = (\d+)(?: << (\d+))?$", limits, re.M)[0]
        return int(left) << int(right or 0)

    assert constant("MaxMessage") == _wire.MAX_MESSAGE
    assert constant("MaxDepth") == _wire.MAX_DEPTH
    assert constant("MaxPayload") == _wire.MAX_PAYLOAD
    assert constant("MaxLabel") == _wire.MAX_LABEL
    assert constant("MaxBranch") == _wire.MAX_BRANCH
    assert constant("MaxBatch") == _wire.MAX_BATCH
    (version,) = re.findall(r"^const Version = (\d+)$", (PROTOCOL / "doc.go").read_text(), re.M)
    assert int(version) == _wire.VERSION


def test_class_names_follow_codes() -> None:
    for code, kind in _errors.CLASSES.items():
        assert kind.__name__ == "".join(part.title() for part in code.split("_"))
        assert getattr(ratoon, kind.__name__) is kind
        assert kind.__name__ in ratoon.__all__


@pytest.mark.parametrize("code", sorted(_errors.CLASSES))
def test_each_code_is_raised_as_its_class(agent: FakeAgent, code: str) -> None:
    agent.answer["sync"] = lambda _: failed(code, "what happened", budget="live")
    with pytest.raises(ratoon.RatoonError) as got:
        ratoon.sync()
    error = got.value
    assert type(error) is _errors.CLASSES[code]
    assert (error.code, error.message, str(error)) == (code, "what happened", "what happened")
    assert error.details == {"budget": "live"}
    assert f"remedy: {error.remedy}" in "".join(traceback.format_exception(error))
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert (twin.code, twin.message, twin.details, twin.remedy) == (
            error.code,
            error.message,
            error.details,
            error.remedy,
        )


def test_unknown_code(agent: FakeAgent) -> None:
    agent.answer["sync"] = lambda _: failed("invented_later")
    with pytest.raises(ratoon.RatoonError) as got:
        ratoon.sync()
    assert type(got.value) is ratoon.RatoonError
    assert got.value.code == "invented_later"


def test_builtin_bases() -> None:
    assert issubclass(ratoon.Timeout, TimeoutError)
    assert issubclass(ratoon.InvalidArgument, ValueError)


@pytest.mark.parametrize(
    ("details", "status", "stderr"),
    [
        ({"status": 0, "signal": "", "stderr": "text"}, 0, "text"),
        ({"status": -1, "signal": "SIGKILL", "stderr": b"bytes\xff"}, -9, "bytes\ufffd"),
        ({"status": -1, "signal": "SIGNONSENSE"}, None, ""),
        ({"status": -1, "signal": ""}, None, ""),
        ({"status": "7", "signal": 9, "stderr": 5}, None, ""),
        ({}, None, ""),
    ],
)
def test_child_exited(details: dict[str, object], status: int | None, stderr: str) -> None:
    error = ratoon.ChildExited("x", details)
    assert (error.status, error.stderr) == (status, stderr)


def test_over_budget() -> None:
    error = ratoon.OverBudget("x", {"budget": "live", "limit": 4, "used": 4})
    assert (error.budget, error.limit, error.used) == ("live", 4, 4)
    error = ratoon.OverBudget("x", {"budget": 1, "limit": "4"})
    assert (error.budget, error.limit, error.used) == (None, None, None)


def test_branch_failed() -> None:
    error = ratoon.BranchFailed("x", {"children": {"0": "no memory", "12": "lost", "x": ""}})
    assert error.reasons == {0: "no memory", 12: "lost"}
    assert ratoon.BranchFailed("x", {"children": "y"}).reasons == {}
