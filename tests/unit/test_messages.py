"""Messages are plain English: no text that a user may see has an idiom that readers had to read twice.

A message is any text of the package that is not a docstring: hints, details, warnings, progress and help, and what the
scripts on devices and the C++ programs print.
"""

import ast
import re
from pathlib import Path

import pytest

import toolchain

ROOT = Path(toolchain.__file__).parent

IDIOMS = {
    r"(?<!\b[Tt]here )\b(is|are|was) no (?!longer\b|more\b)[a-z]": "write: is not a valid ...",
    r"\b(is|are|be) none\b": "write: is not a valid ...",
    r"\bexclude each other\b": "write: cannot be combined",
    r"\b(whoever|nobody|somebody|everybody)\b": "name the agent: another client, any user, the command",
    r"\b(is|are|was|were) (told|said)\b": "name the act: is reported, is printed",
    r"\b(is|are) of (opset|schema|version|revision)\b": "write: has version ...",
    r"\b(says|said) (so|what|more|no)\b": "name the act: reports, prints, shows",
    r"\b(names|knows) no\b": "write: is not a valid ..., does not support ...",
    r"\bgoes on (with|where)\b": "write: continues",
    r"\bare the (most|least)\b": "write: at most, at least",
    r"\bat work on\b": "write: uses, is in use",
}
SHOWN = re.compile(r"[A-Za-z]{2,}[^A-Za-z]+[A-Za-z]{2,}")


def text_of(node):
    """The text of a literal, with a mark for each value in it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(value.value if isinstance(value, ast.Constant) else "{}" for value in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def literals(node):
    """Walk over literals; a string that is a statement of its own is documentation."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        if text := text_of(child):
            yield child.lineno, text
        if not isinstance(child, ast.JoinedStr):
            yield from literals(child)
            continue
        for value in child.values:
            if isinstance(value, ast.FormattedValue):
                yield from literals(value)


def messages_of_python(source):
    return [(line, text) for line, text in literals(ast.parse(source)) if SHOWN.search(text)]


def messages_of_shell(source):
    lines = enumerate(source.split("\n"), start=1)
    return [(number, line) for number, line in lines if not line.lstrip().startswith("#") and '"' in line]


def messages_of_cpp(source):
    messages = []
    for number, line in enumerate(source.split("\n"), start=1):
        code = line.partition("//")[0]
        messages += [(number, text) for text in re.findall(r'"((?:[^"\\]|\\.)*)"', code) if SHOWN.search(text)]
    return messages


READERS = {".py": messages_of_python, ".sh": messages_of_shell, ".cc": messages_of_cpp}


def idioms(path, source):
    """Say which idioms a file has, and what to write instead."""
    return [
        f"{path}:{line}: {match[0]!r} in {text.strip()[:160]!r}: {remedy}"
        for line, text in READERS[path.suffix](source)
        for pattern, remedy in IDIOMS.items()
        if (match := re.search(pattern, text))
    ]


def sources():
    return sorted(path for path in ROOT.rglob("*") if path.suffix in READERS and "_data" not in path.parts)


def test_messages_have_no_such_idiom():
    faults = [fault for path in sources() for fault in idioms(path, path.read_text())]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("name", "source", "count"),
    [
        ("a.py", 'raise InputError(f"{word!r} is no number")', 1),
        ("a.py", 'raise InputError("--a and --b exclude each other", hint="whoever asked")', 2),
        ("a.py", '"""That is none."""\n\ndef f():\n    """Nobody is told."""\n', 0),
        ("a.py", 'tell("there is no longer a place")', 0),
        ("a.sh", '# nobody knows\nfail 2 "nobody knows"', 1),
        ("a.cc", 'Fail("it is no socket");  // "is none"', 1),
        ("a.cc", '// nobody knows\nFail("it is not a socket");', 0),
    ],
)
def test_the_idioms_are_seen_in_messages_alone(name, source, count):
    assert len(idioms(Path(name), source)) == count
