"""A timm model that is too large as it is has fewer layers."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.clients


def test_layers_are_left_out_only_where_it_takes_that() -> None:
    from neuron_readiness.sweep.sources import CannotBuild, timm

    if (why := timm.available()) is not None:
        pytest.skip(why)
    assert timm._reduction("test_convnext")[0] == {}
    fewer, count = timm._reduction("beit_base_patch16_224")
    assert fewer == {"depth": 2} and count < timm._MOST_PARAMETERS
    with pytest.raises(CannotBuild, match=" parameters"):
        timm._reduction("nasnetalarge")
