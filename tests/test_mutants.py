"""What `make mutants` changes in a function."""
from __future__ import annotations

import ast

from mutants import functions, mutants, name_of

SOURCE = """
TABLE = {"a": lambda x: x > 1}

def judge(a, b):
    if a < 1 and not b:
        return [x for x in b if x in a]
    return 1 if a or b else 2
"""


def test_each_condition_is_changed_once_and_put_back():
    tree = ast.parse(SOURCE)
    table, judge = tree.body
    whole = ast.dump(tree)
    assert [after for _, _, after in mutants(table)] == ["x <= 1"] and name_of(table) == "TABLE"
    assert sorted((before, after) for _, before, after in mutants(judge)) == sorted(
        [
            ("if a < 1 and (not b)", "if False"),
            ("a < 1 and (not b)", "True and (not b)"),
            ("a < 1 and (not b)", "a < 1 and True"),
            ("a < 1", "a >= 1"),
            ("not b", "not not b"),
            (" for x in b if x in a", " for x in b"),
            ("x in a", "x not in a"),
            ("if a or b", "if False"),
            ("a or b", "False or b"),
            ("a or b", "a or False"),
        ]
    )
    assert ast.dump(tree) == whole and name_of(judge) == "judge"


def test_every_mutant_is_other_code_of_just_one_function():
    tree = ast.parse(SOURCE)
    before = list(functions(compile(tree, "x", "exec")))
    assert len(before) == 2
    for part, at in zip(tree.body, (0, 1), strict=True):
        for _ in mutants(part):
            after = list(functions(compile(tree, "x", "exec")))
            assert [n for n, (old, new) in enumerate(zip(before, after, strict=True)) if old != new] == [at]
