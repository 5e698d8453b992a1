"""The contract of an add-on of another distribution, which brings components by entry points."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution
from typing import Any, ClassVar

from dsinga.base.components import GROUP, built_in, offered
from dsinga.base.registry import KINDS, find
from dsinga.job.component import settings_class


class AddonContract:
    """The entry points of a distribution name components that are found, and imported when they are asked for.

    Attributes:
        distribution: the name of the distribution, which is installed.
    """

    distribution: ClassVar[str]

    def names(self) -> dict[tuple[str, str], Any]:
        """Return the entry points by kind and name."""
        points = distribution(self.distribution).entry_points.select(group=GROUP)
        return {(point.name.partition(".")[0], point.name.partition(".")[2]): point for point in points}

    def test_each_name_is_that_of_a_kind_and_of_no_other_component(self) -> None:
        """Two distributions with one name are refused where a job names it."""
        assert self.names()
        for kind, name in self.names():
            assert kind in KINDS
            assert len(offered(kind)[name]) == 1
            assert name not in built_in(kind)

    def test_each_component_is_found_and_says_what_it_is(self) -> None:
        """Tables of components, and completion, show the first lines."""
        for kind, name in self.names():
            component = find(kind, name)
            assert component is not None
            assert component.__doc__
            settings = settings_class(component)
            assert settings is None or settings.__doc__

    def test_nothing_is_imported_before_it_is_asked_for(self) -> None:
        """A process that uses none of the components does not wait for them."""
        modules = {point.module for point in self.names().values()}
        listed = (
            f"from dsinga.base.registry import KINDS, registered; [*map(registered, KINDS)]; assert not {modules!r}"
        )
        subprocess.run([sys.executable, "-c", f"import sys; {listed} & sys.modules.keys()"], check=True, timeout=60)
