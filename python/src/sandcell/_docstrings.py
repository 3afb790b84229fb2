"""What a docstring says about a function and its parameters, in the styles of Google, NumPy and reST."""

from __future__ import annotations

import inspect
import re

_SECTION = re.compile(r"(?:Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Other Parameters)\s*:?\s*$")
_RULE = re.compile(r"-{3,}\s*$")
_GOOGLE = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:(?:\s+|$)(.*)")
_NUMPY = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")
_REST = re.compile(r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)")


def read(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Returns the first paragraph in one line, and the descriptions of parameters by name."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    paragraph: list[str] = []
    for number, line in enumerate(lines):
        if not line.strip() or line.startswith(":") or _begins_section(lines, number):
            break
        paragraph.append(line.strip())
    parts: dict[str, list[str]] = {}
    for number, line in enumerate(lines):
        if found := _REST.match(line.strip()):
            _collect(parts, [found[1]], found[2], _below(lines, number))
        elif _begins_section(lines, number) and _SECTION.match(line.strip()):
            if number + 1 < len(lines) and _RULE.match(lines[number + 1].strip()):
                _read_numpy(lines[number + 2 :], parts)
            elif line.rstrip().endswith(":"):
                _read_google(_below(lines, number), parts)
    return " ".join(paragraph), {name: text for name, words in parts.items() if (text := " ".join(words))}


def _begins_section(lines: list[str], number: int) -> bool:
    ruled = number + 1 < len(lines) and bool(_RULE.match(lines[number + 1].strip()))
    return ruled or bool(re.match(r"(?:[A-Z]\w+ ?){1,2}:$", lines[number].strip()))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _below(lines: list[str], number: int) -> list[str]:
    """Returns the lines after one that are indented more than it."""
    below: list[str] = []
    for line in lines[number + 1 :]:
        if line.strip() and _indent(line) <= _indent(lines[number]):
            break
        below.append(line)
    return below


def _collect(parts: dict[str, list[str]], names: list[str], first: str, below: list[str]) -> None:
    """Keeps the first paragraph about parameters."""
    words = [first.strip()] if first.strip() else []
    for line in below:
        if not line.strip() and words:
            break
        words += [line.strip()] if line.strip() else []
    for name in names:
        parts.setdefault(name, words)


def _read_google(lines: list[str], parts: dict[str, list[str]]) -> None:
    indent = min((_indent(line) for line in lines if line.strip()), default=0)
    for number, line in enumerate(lines):
        if _indent(line) == indent and (found := _GOOGLE.match(line.strip())):
            _collect(parts, [found[1]], found[2], _below(lines, number))


def _read_numpy(lines: list[str], parts: dict[str, list[str]]) -> None:
    for number, line in enumerate(lines):
        if _begins_section(lines, number):
            break
        if line.strip() and _indent(line) == 0 and (found := _NUMPY.match(line.strip())):
            _collect(parts, [name.strip().lstrip("*") for name in found[1].split(",")], "", _below(lines, number))
