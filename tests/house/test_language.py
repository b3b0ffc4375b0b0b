"""Plain, standard English: banned words and phrases, docstring openings, described parameters, examples.

Extend `BANNED` whenever a reader stumbles over a word. The handbook has the reasons.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.reading import ROOT, modules, tracked_files

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
}  # fmt: skip
# Not rewritten yet; gets shorter with each commit and then goes.
UNREVIEWED = ("analyzer", "gatekeeper", "migrations", "docs", "README.md")
PATTERN = re.compile(rf"\b(?:{'|'.join(f'(?:{each})' for each in BANNED)})\b", re.IGNORECASE)

# A docstring's first line names the thing or what it returns; these openings make it a riddle.
OPENINGS = re.compile(
    r"(?:The same|Who|Whom|Whose|What|Where|Why|How|When|As|Those|That|It|Its|They"
    r"|One (?:that|who|which|of))\b(?!-)"
)
MODULE_OPENINGS = re.compile(OPENINGS.pattern + r"|Whether\b")


def words_of(path: Path) -> Iterator[tuple[int, str]]:
    """Each line of a file in which a person reads something, and its number: comments, texts and names of
    Python files, with underscores as blanks; every line of other files."""
    text = (ROOT / path).read_text()
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING, tokenize.NAME):
            for number, line in enumerate(token.string.splitlines(), token.start[0]):
                yield number, line.replace("_", " ")


def advice(phrase: str) -> str:
    return next(cure for each, cure in BANNED.items() if re.fullmatch(each, phrase, re.IGNORECASE))


def written() -> list[Path]:
    return [
        path
        for path in tracked_files()
        if path.parts[0] in ("analyzer", "gatekeeper", "migrations", "docs", "README.md")
        and path.suffix in (".py", ".md")
        and path.parts[:2] != ("docs", "decisions")
        and not str(path).startswith(UNREVIEWED)
    ]


@pytest.mark.parametrize("path", written(), ids=str)
def test_no_banned_phrase_is_used(path: Path) -> None:
    # Phrases may run over a line's end in comments and documents.
    found = [
        f"{path}:{number}: {hit[0]!r}: {advice(' '.join(hit[0].split()))}"
        for number, line in words_of(path)
        for hit in PATTERN.finditer(line)
    ]
    assert found == []


def documented(tree: ast.Module) -> Iterator[tuple[int, ast.AST, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), node, text


@pytest.mark.parametrize("name", modules())
def test_a_docstring_begins_with_what_it_describes(name: str) -> None:
    module = modules()[name]
    if str(module.path.relative_to(ROOT)).startswith(UNREVIEWED):
        return
    found = [
        f"{module.path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for line, node, text in documented(module.tree)
        if (MODULE_OPENINGS if isinstance(node, ast.Module) else OPENINGS).match(text)
    ]
    assert found == []
