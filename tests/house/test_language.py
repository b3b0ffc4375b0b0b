"""Plain, standard English: banned words and phrases, docstring openings, described parameters, examples.

Extend `BANNED` whenever a reader stumbles over a word. The handbook has the reasons.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.house.reading import ROOT, tracked_files

# A pattern, and what to write in its place.
BANNED = {
    r"nobody|no one|noone": "no caller, no process, nothing; or turn the sentence around",
    r"somebody|someone": "an operator, another process, a client",
    r"anybody|anyone": "any caller, any process",
    r"everybody|everyone else": "all callers, all processes, the others",
    r"whoever|whosoever|whomever": "the caller that, the process that",
    r"whatever|whichever": "any, or name the alternatives",
    r"of (?:its|their|his|our|one's) own": "separate, its, dedicated",
    r"by half": "partly, incomplete",
    r"at the door": "on accept, at the entrance of the function",
    r"go(?:es|ing)? on|went on|gone on": "continue, keep, last",
    r"beside (?:it|them|this|that|us|ours)": "in addition, next to, concurrently",
    r"for ever": "forever",
    r"anew": "again, from scratch",
    r"all the same": "nevertheless, still; or drop it",
    r"(?:is|are|was|were|be|been|being) (?:told|heard|said)": "reported, received, logged; name the subject",
    r"hear(?:s|d)? of": "seen, last reported",
    r"(?:who|whom) (?:asks?|goes|comes|gives|takes|wants|reads|waits)": "name the caller, client or process",
    r"set aside|sets aside|setting aside": "reject, dead letter, store",
    r"strangers?": "unknown caller, unknown gate",
    r"lets? (?:everybody|everyone|all) (?:pass|through)": "admit all requests",
    r"stands? still": "stalls, does not move",
    r"(?<!there )(?:is|are|was|were) no (?!longer\b|more than\b|later than\b)[a-z]+": "is not a ...",
    r"without another thought": "drop it",
    r"by (?:its|their|his) word": "name the command or the field",
    r"in the way of": "blocks",
    r"out of (?:a|the) (?:file|database|topic|feed|store|log)": "from",
    r"comes? about": "is established, happens",
    r"(?:gets?|getting|got) over": "recovers from",
    r"a person": "an operator",
    r"fares?|faring": "state, health",
    r"ask(?:s|ed)? for nothing": "drop it",
    r"he|she|him|himself|herself|his|hers|oneself": "it or they: a caller, a client, an operator",
    r"(?:in|for|of|after|with|by|at|than|every) so (?:many|much|long|few|little)": "name the parameter",
    r"(?:unless|when|until|if|as|once) told": "name the parameter: unless `name` is given",
    r"(?:what|which|that) (?:it|they|we) (?:tells?|told|says?)": "name the value: its reports, its messages",
    r"tells? of|spoken|speaks? of": "reports, shows, describes",
    r"let(?:s|ting)? go": "release",
    r"bec(?:o|a)mes? of": "happens to",
    r"(?:is|are|was|were|be|been|being) looked (?:at|into|for)": "checked, read, searched",
    r"go(?:es)? before": "takes precedence over",
    r"in (?:its|their|one's) hands?": "holds, controls",
    r"knock(?:s|ing)?": "connect, call",
    r"unkind(?:ly)?": "name the difficulty",
    r"be it": "whether",
    r"whence|whither|hitherto|hence(?:forth)?|thereof|therein|thereupon|whereof|wherein": "therefore, of it",
    r"whereupon|whereby|lest|thrice": "then, by which, so that ... not, three times",
}
# Names that say nothing about a variable, a parameter or a function.
BANNED_NAMES = {"each", "heard", "meant", "ours", "said", "some", "somebody", "theirs", "told"}
# A test's name is a sentence with a named subject.
RIDDLES = re.compile(r"test_(?:who|whom|whose|what|it|its|as|those|that|they)_")
SUFFIXES = ("", ".conf", ".lua", ".md", ".py", ".service", ".toml", ".xml", ".yaml", ".yml")
PATTERN = re.compile(rf"\b(?:{'|'.join(f'(?:{phrase})' for phrase in BANNED)})\b", re.IGNORECASE)

# A docstring's first line names the thing or what it returns; these openings make it a riddle.
OPENINGS = re.compile(
    r"(?:The same|Who|Whom|Whose|What|Where|Why|How|When|As|Those|That|It|Its|They"
    r"|One (?:that|who|which|of))\b(?!-)"
)
MODULE_OPENINGS = re.compile(OPENINGS.pattern + r"|Whether\b")


def words_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the number and the text of each line that is written for readers: comments, strings and names of
    Python files, with underscores as blanks; every line of other files."""
    text = (ROOT / path).read_text()
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING, tokenize.NAME):
            for number, line in enumerate(token.string.splitlines(), token.start[0]):
                yield number, line.replace("_", " ")


@cache  # most lines are a name, and names come often
def banned_in(line: str) -> tuple[str, ...]:
    """Returns the banned phrases of a line."""
    return tuple(hit[0] for hit in PATTERN.finditer(line))


def advice(phrase: str) -> str:
    """Returns what to write in place of a banned phrase."""
    return next(cure for pattern, cure in BANNED.items() if re.fullmatch(pattern, phrase, re.IGNORECASE))


def written() -> list[Path]:
    """Returns the files that are held to these rules."""
    return [
        path
        for path in tracked_files()
        if path.suffix in SUFFIXES
        if path.name not in ("LICENSE", "test_language.py")
    ]


def documented(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, ast.AST, str]]:
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), node, text


def stored_names(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yields the line and the name of every variable, parameter, function and class that is defined."""
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name


def findings_in(path: Path) -> Iterator[str]:
    """Yields everything that is wrong with the language of a file."""
    for number, line in words_of(path):
        for phrase in banned_in(line):
            yield f"{path}:{number}: {phrase!r}: {advice(' '.join(phrase.split()))}"
    if path.suffix != ".py":
        return
    nodes = [*ast.walk(ast.parse((ROOT / path).read_text()))]
    for number, node, text in documented(nodes):
        if (MODULE_OPENINGS if isinstance(node, ast.Module) else OPENINGS).match(text):
            yield f"{path}:{number}: name the thing, or what it returns: {text.splitlines()[0]}"
        summary = text.partition("\n\n")[0].rstrip()
        if ">>>" not in summary and not summary.endswith((".", ":", "?", "!")):
            yield f"{path}:{number}: end the first sentence within its paragraph: {summary.splitlines()[-1]}"
    for number, name in stored_names(nodes):
        if name in BANNED_NAMES:
            yield f"{path}:{number}: {name!r}: name the thing"
        if RIDDLES.match(name):
            yield f"{path}:{number}: {name}: name the subject"


@pytest.mark.parametrize("folder", sorted({path.parts[0] for path in written()}))
def test_the_language_is_plain(folder: str) -> None:
    paths = [path for path in written() if path.parts[0] == folder]
    assert [finding for path in paths for finding in findings_in(path)] == []


def test_findings_are_found(tmp_path: Path) -> None:
    """The path is absolute, so that it stays below `tmp_path`."""
    file = tmp_path / "test_sample.py"
    file.write_text(
        '"""What this is."""\n'
        "# Nobody reads it.\n"
        "def test_it_works(each):\n"
        "    '''Returns one;\n\n    always.'''\n"
        "    goes_on = 1\n"
        "    return 'is no table', goes_on\n"
    )
    found = [finding.removeprefix(f"{file}:").partition(": ") for finding in findings_in(file)]
    assert [(number, finding[:14]) for number, _, finding in found] == [
        ("2", "'Nobody': no c"),
        ("7", "'goes on': con"),
        ("8", "'is no table':"),
        ("8", "'goes on': con"),
        ("1", "name the thing"),
        ("3", "end the first "),
        ("3", "test_it_works:"),
        ("3", "'each': name t"),
    ]
