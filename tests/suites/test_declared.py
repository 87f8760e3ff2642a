"""A case that is declared must fail, and its name must be that of a case."""

from __future__ import annotations

import pytest
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db

from suites import declared
from suites.declared import FOREACH, HIGHER_ORDER, MODULES, OPTIMIZERS


def test_a_declared_case_that_fails_is_expected() -> None:
    with pytest.raises(pytest.xfail.Exception, match="why"), declared.declared({"a": "why"}, "a"):
        raise ValueError("what went wrong")


def test_a_declared_case_that_passes_fails_the_run() -> None:
    message = r"a passes: remove it from .*why"
    with (
        pytest.raises(pytest.fail.Exception, match=message),
        declared.declared({"a": "why"}, "a"),
    ):
        pass


def test_other_cases_pass_and_fail_as_they_do() -> None:
    with declared.declared({"a": "why"}, "b"):
        pass
    with pytest.raises(ValueError, match="wrong"), declared.declared({"a": "why"}, "b"):
        raise ValueError("wrong")


def test_every_declaration_names_a_case_and_says_why() -> None:
    from suites.test_foreach_db import DATABASE, DTYPES
    from suites.test_hop_db import hop_db

    forms = ("functional", "in_place", "gradients")
    dtypes = [str(d).removeprefix("torch.") for d in DTYPES]
    modules = [m.formatted_name for m in module_db]
    cases = [
        (MODULES, {f"test_{k}_{m}" for k in ("eager", "compiled", "reduced") for m in modules}),
        (
            OPTIMIZERS,
            {
                f"{o.name}_{k}"
                for k in ("forloop", "foreach", "fused", "compiled", "errors")
                for o in optim_db
            },
        ),
        (FOREACH, {f"{o.name}_{f}_{d}" for o in DATABASE for f in forms for d in dtypes}),
        (
            HIGHER_ORDER,
            {f"{o.name}_{o.variant_test_name}_{k}" for o in hop_db for k in ("eager", "compiled")},
        ),
    ]
    for reasons, names in cases:
        assert reasons.keys() <= names
        assert all(len(reason.split()) > 4 for reason in reasons.values())
