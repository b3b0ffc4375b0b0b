"""Which net finds which mistake: the table in tests/mutations.md names every mutation of every net."""

from __future__ import annotations

import ast
import re

from tests.cuts import mutations as cuts
from tests.faults import mutations as faults
from tests.house.reading import ROOT
from tests.simulation import mutations as simulation
from tests.simulation.days.day_mutations import DAY_MUTATIONS

NET = re.compile(r"(simulation|interleavings|faults|cuts|model) `([\w-]+)`")


def test_the_table_of_mistakes_names_every_mutation_with_the_net_that_finds_it() -> None:
    nets = {
        "simulation": {*simulation.MUTATIONS, *DAY_MUTATIONS},
        "interleavings": interleavings(),
        "faults": set(faults.MUTATIONS),
        "cuts": set(cuts.MUTATIONS),
        "model": {path.stem for path in (ROOT / "docs/spec").glob("*-broken-*.cfg")},
    }
    named = NET.findall((ROOT / "tests/mutations.md").read_text())
    assert len(named) == len(set(named))
    assert set(named) == {(net, name) for net, names in nets.items() for name in names}
    assert len(named) > 50


def interleavings() -> set[str]:
    """Returns the tests of mutations of transactions, without reading their PostgreSQL."""
    tree = ast.parse((ROOT / "tests/interleavings/test_transaction_mutations.py").read_text())
    names = (node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    return {name.removeprefix("test_") for name in names if name.startswith("test_")}
