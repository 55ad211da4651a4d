"""What every test gets."""

import hypothesis
import pytest
from turngym.envs import registry

hypothesis.settings.register_profile("turngym", deadline=None)  # machines are shared: time says nothing of a rule
hypothesis.settings.load_profile("turngym")


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
